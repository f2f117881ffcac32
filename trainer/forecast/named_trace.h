// SPDX-License-Identifier: Apache-2.0
// Defines what a forecast is asked about, a round and the rates of what computes it, and what it
// returns: the trace that the round will leave, with the names of what is in it.
// Units: bytes, nanoseconds.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gemini/plan/trace.h"
#include "gemini/state_format.h"

namespace gemini::trainer {

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
  // Rows hold several documents, which attention keeps apart (trainer/models/row_documents.h).
  // Their lengths matter only where attention computes scores by pieces (row_attention.h): there
  // the forecast has one document that fills all of a row but a token.
  bool has_documents = false;
  // Into how many parameters tables of the vocabulary are cut (CutIntoBlocks).
  int64_t vocabulary_blocks = 1;
  // The CPU plays DEVICE: its attention keeps the scores where they are dropped out, its masks are
  // of the type of what they mask and not bytes, a gradient leaves DEVICE sooner, and the head is
  // computed by smaller pieces.
  bool on_cpu = false;
  // Whether memory is counted that products in 16 bits may take inside on a CPU. How much they do
  // depends on the processor, so a bound from below leaves it out.
  bool counts_kernels = true;

  StateFormat format() const { return {element, optimizer, moments}; }
};

// What the DEVICE achieves, not what its data sheet says. All > 0, but where it is said.
struct ComputeRate {
  double flops_per_second = 1e12;  // Of matrix products; a multiply-add is two.
  // The rate of products in fused attention, which are small. 0 stands for the rate of the others.
  double attention_flops_per_second = 0;
  double memory_bytes_per_second = 1e11;  // Of everything else.
  int64_t kernel_ns = 0;                  // Of one kernel, beside its work. >= 0.
};

// Non-model data that an operator cannot do without: its part of the DEVICE floor.
struct OperatorNeed {
  int64_t pinned_bytes = 0;  // While it has its tensors pinned.
  // In all of its interval. What comes behind the operator, as the gradient of its weight, finds
  // the room of its tensors free.
  int64_t bytes = 0;
  bool operator==(const OperatorNeed&) const = default;
};

struct NamedTrace {
  Trace trace;
  std::vector<std::string> tensor_names;    // By tensor.
  std::vector<std::string> operator_names;  // By position: "backward of transformer.h.3.mlp.c_fc".
  // By position: without the gradients that are leaving DEVICE, which whoever needs room waits for.
  std::vector<OperatorNeed> needs;
};

}  // namespace gemini::trainer
