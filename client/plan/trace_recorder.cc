// SPDX-License-Identifier: Apache-2.0
#include "client/plan/trace_recorder.h"

#include <algorithm>

namespace gemini::client {

void TraceRecorder::Begin() {
  trace_.operators.clear();
  trace_.uses.clear();
  trace_.gradient_outs.clear();
  trace_.updated.clear();
}

void TraceRecorder::BeginWith(const Trace& trace, int32_t num_positions) {
  trace_.operators.assign(trace.operators.begin(), trace.operators.begin() + num_positions);
  int32_t num_uses = 0;
  if (num_positions > 0) {
    const TracedOperator& last = trace.operators[num_positions - 1];
    num_uses = last.first_use + last.num_uses;
  }
  trace_.uses.assign(trace.uses.begin(), trace.uses.begin() + num_uses);
}

void TraceRecorder::AddOperator(absl::Span<const TensorUse> uses) {
  trace_.operators.push_back({.first_use = static_cast<int32_t>(trace_.uses.size()),
                              .num_uses = static_cast<int32_t>(uses.size())});
  trace_.uses.insert(trace_.uses.end(), uses.begin(), uses.end());
}

void TraceRecorder::MarkWritten(int32_t position, absl::Span<const TensorUse> uses) {
  const TracedOperator& at = trace_.operators[position];
  for (const TensorUse& use : uses) {
    for (int32_t i = at.first_use; i < at.first_use + at.num_uses; ++i) {
      TensorUse& recorded = trace_.uses[i];
      if (recorded.tensor == use.tensor && recorded.kind == use.kind) recorded.written = true;
    }
  }
}

}  // namespace gemini::client
