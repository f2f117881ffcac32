// SPDX-License-Identifier: Apache-2.0
// Records the trace of one round as it happens, into memory that it keeps: a round like the one
// before allocates nothing.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>

#include "absl/types/span.h"
#include "gemini/plan/trace.h"

namespace gemini::client {

class TraceRecorder {
 public:
  // Begins a round.
  void Begin();
  // Begins the round with the first `num_positions` operators of `trace`. Gradients that were added
  // before stay.
  void BeginWith(const Trace& trace, int32_t num_positions);

  void AddOperator(absl::Span<const TensorUse> uses);
  // Marks these uses of the operator at `position` as written, which showed only at its end.
  void MarkWritten(int32_t position, absl::Span<const TensorUse> uses);
  // Adds a gradient that leaves in the interval of the operator at `position`.
  void AddGradientOut(int32_t position, int32_t tensor) {
    trace_.gradient_outs.push_back({.position = position, .tensor = tensor});
  }

  // Returns how much memory the round takes that is recorded.
  int64_t size_bytes() const {
    return static_cast<int64_t>(trace_.operators.size() * sizeof(TracedOperator) +
                                trace_.uses.size() * sizeof(TensorUse));
  }
  // Returns the trace without times, peaks, phase, tensors and `updated`, which the caller fills
  // in. The caller may also exchange it for another.
  Trace& trace() { return trace_; }

 private:
  Trace trace_;
};

}  // namespace gemini::client
