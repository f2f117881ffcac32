// SPDX-License-Identifier: Apache-2.0
// Predicts the trace that a training step or an evaluation batch of a model will leave, by a dry
// run: the model's own code runs on the meta device, where tensors have sizes but no bytes, and its
// operators are watched by the rules of the hook (client/torch/hook/operator_inputs.h,
// operator_traits.h). So the trace has the operators, the tensors and the lifetimes of the step
// itself.
// Memory: that of each tensor, as the allocator would charge it. Of what kernels allocate inside on
//         a CPU, only the sums of products in 16 bits and the tiles of fused attention are counted,
//         these for as many threads as this process has. oneDNN copies matrices in 16 bits whose
//         rows do not divide by 64, which is not counted.
// Times:  of each kernel the larger of its arithmetic and its bytes, by `rate`. That of causal
//         attention is halved, as Narayanan et al. count it (arXiv:2104.04473, appendix).
// Experts: in traces, routers deal the tokens out evenly.
// Thread: any; runs on the caller's. The first call adds kernels to Torch's meta device and
//         replaces its allocator, in this process (meta_kernels.h, meta_memory.h).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "trainer/families/model_spec.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

class StagedModel;
struct Batch;

// Tensors are in the order of the model's parameters. INVALID_ARGUMENT: a count or a rate that is
// not above 0, more than 2^26 tokens a micro-batch, a sequence beyond the model's positions, more
// than 2^24 operators, or a trace that CheckTrace refuses. INTERNAL: Torch cannot run the step on
// the meta device.
absl::StatusOr<NamedTrace> TraceStep(const ModelSpec& spec, const RoundShape& round,
                                     const ComputeRate& rate);
// Returns the same of a model that `make` makes on the meta device, with parameters of the round's
// type: of `spec`, or of one with fewer of its blocks.
absl::StatusOr<NamedTrace> TraceStep(
    const ModelSpec& spec, const RoundShape& round, const ComputeRate& rate,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<StagedModel>>(const ModelSpec&)> make);
// Returns the trace of what `run` does with a model on the meta device, in place of the round's own
// micro-batches: with its parameters and gradients, to the update. `run` may ask how many
// nanoseconds all kernels have taken so far, and its error is returned. Others: as above.
absl::StatusOr<NamedTrace> TraceRun(
    const ModelSpec& spec, StagedModel& model, const RoundShape& round, const ComputeRate& rate,
    absl::FunctionRef<absl::Status(absl::FunctionRef<int64_t()> computed_ns)> run);
// Returns how many nanoseconds the kernels of `run` take by `rate`, whose tensors are on the meta
// device. It may throw what Torch throws.
int64_t ForetoldKernelNs(const ComputeRate& rate, absl::FunctionRef<void()> run);
// Returns a micro-batch of the round, on the meta device.
Batch DryBatchOf(const ModelSpec& spec, const RoundShape& round);
// Returns how many bytes of non-model data each operator of that trace needs at most, however the
// routers deal, by the same count of memory. Operators of experts that follow one another all get
// what the neediest of them can need; the others, which do not depend on the routers, 0. Empty: the
// model has no experts. Errors: as above.
absl::StatusOr<std::vector<int64_t>> MostNonModelBytes(const ModelSpec& spec,
                                                       const RoundShape& round);
// Returns what TraceStep returns, which runs few of the blocks that are equal (repeated_blocks.h).
// This runs all.
absl::StatusOr<NamedTrace> TraceAllBlocks(const ModelSpec& spec, const RoundShape& round,
                                          const ComputeRate& rate);

}  // namespace gemini::trainer
