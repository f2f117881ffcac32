// SPDX-License-Identifier: Apache-2.0
// Writes the trace of a round that nobody ran, operator by operator, and follows the sum of its
// non-model data through the intervals.
// Errors: a sum below zero is a mistake of the caller's and stops the process.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gemini/plan/trace.h"
#include "trainer/forecast/transformer_trace.h"

namespace gemini::policies {

class TraceWriter {
 public:
  // Both outlive this; the tensors of `out` are complete, its operators are written here.
  // `on_cpu`: as in RoundShape. Elsewhere a gradient holds its bytes through the next interval.
  TraceWriter(TransformerTrace& out, const ComputeRate& rate, bool on_cpu)
      : out_(out), rate_(rate), on_cpu_(on_cpu) {}

  // What a tensor of that size is charged as.
  int64_t Allocated(int64_t tensor_bytes) const;

  // Begins the operator `pass` + the layer's name, which uses the layer's tensors. Without any it
  // is part of the one before, unless it is the first.
  void Operator(const char* pass, const LayerTensors& layer);
  // Ends the round with the update of all tensors, first used first.
  void Update();

  // One kernel in the interval of the operator that began last. The first one is the operator's
  // own: behind it nothing pins the operator's tensors any more.
  void Run(double flops, double bytes);
  // Non-model data appears or goes in that interval.
  void Take(int64_t bytes);
  void Give(int64_t bytes);
  // So does a tensor of the size of `tensor`, as its gradient is (none if < 0).
  void TakeGradient(int32_t tensor) { Take(GradientBytes(tensor)); }
  void GiveGradient(int32_t tensor) { Give(GradientBytes(tensor)); }
  // The gradient of `tensor` (none if < 0), which was taken, is complete. The first micro-batch's
  // leaves DEVICE; that of a later one is added to its chunk by an operator of its own.
  void FinishGradient(int32_t tensor, bool is_first);

  // Whether nothing is left but gradients that are leaving.
  bool is_balanced() const;

 private:
  int64_t GradientBytes(int32_t tensor) const {
    return tensor < 0 ? 0 : Allocated(out_.trace.tensors[tensor].size_bytes);
  }
  void Begin(std::string name, absl::Span<const TensorUse> uses);

  TransformerTrace& out_;
  const ComputeRate& rate_;
  const bool on_cpu_;
  int64_t live_bytes_ = 0;
  bool is_pinned_ = false;                            // The operator that began last has not run.
  std::vector<std::pair<int32_t, int64_t>> leaving_;  // Position and bytes.
};

}  // namespace gemini::policies
