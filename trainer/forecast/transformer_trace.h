// SPDX-License-Identifier: Apache-2.0
// The trace that a training step or an evaluation batch of a transformer will leave, before anybody
// ran it: what a planner needs to say how a model would do on a machine that one does not own.
// Model:  one operator for each layer with parameters, forward and backward, and one for each
//         gradient that a later micro-batch adds to its chunk. (In LibTorch the backward of a
//         linear layer is two operators on the same weight, a view and a product: they are one
//         here.) What has no parameters (attention, activations, dropout, sums, the loss) belongs
//         to the interval before it. Non-model data is followed tensor by tensor as
//         trainer/models/{transformer,recompute}.cc and autograd keep and release it; attention is
//         fused and stores no scores; the loss is computed in fp32. A gradient stays on DEVICE
//         through the interval after its own, while it leaves. RoundShape::on_cpu says where a CPU
//         differs.
// Times:  of each kernel the larger of its arithmetic and its bytes, by `rate`.
// Source: activations of a block as counted by Korthikanti et al., "Reducing Activation
//         Recomputation in Large Transformer Models", arXiv:2205.05198, section 4.1, less the
//         scores; recomputation of Chen et al., arXiv:1604.06174.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/plan/trace.h"
#include "gemini/state_format.h"
#include "trainer/forecast/transformer_shape.h"

namespace gemini::policies {

struct RoundShape {
  bool train = true;        // False: forward and loss alone, without gradients.
  int64_t batch = 1;        // Sequences a micro-batch.
  int64_t sequence = 1024;  // Tokens, <= the model's positions.
  int64_t micro_batches = 1;
  bool recompute = false;  // Each block keeps its input alone, and runs again in backward.
  ElementType element = ElementType::kFp32;  // Of parameters, gradients and activations on DEVICE.
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  MomentFormat moments = MomentFormat::kFp32;
  bool states_on_nvme = false;  // The home of the optimizer's.
  // The CPU plays DEVICE: its attention keeps the scores where they are dropped out, its masks are
  // of the type of what they mask, and a gradient leaves DEVICE as soon as it is complete.
  bool on_cpu = false;

  StateFormat format() const { return {element, optimizer, moments}; }
};

// What the DEVICE achieves, not what its data sheet says. All > 0.
struct ComputeRate {
  double flops_per_second = 1e12;         // Of matrix products; a multiply-add is two.
  double memory_bytes_per_second = 1e11;  // Of everything else.
  int64_t kernel_ns = 0;                  // Of one kernel, beside its work. >= 0.
};

struct TransformerTrace {
  Trace trace;
  std::vector<std::string> tensor_names;    // By tensor.
  std::vector<std::string> operator_names;  // By position: "backward of transformer.h.3.mlp.c_fc".
  // By position: the part of the operator's peak at which it has its tensors pinned. What comes
  // behind it in its interval, as the gradient of its weight, finds their room free.
  std::vector<int64_t> pinned_peak_bytes;
};

// INVALID_ARGUMENT: CheckShape, a count below 1, an element of another size, a sequence beyond the
// model's positions, or more than 2^24 operators.
absl::StatusOr<TransformerTrace> MakeTransformerTrace(const TransformerShape& shape,
                                                      const RoundShape& round,
                                                      const ComputeRate& rate);

}  // namespace gemini::policies
