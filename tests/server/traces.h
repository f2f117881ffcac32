// SPDX-License-Identifier: Apache-2.0
// Traces for tests of the server.
#pragma once
#include <cstdint>
#include <string>

#include "gemini/plan/trace.h"

namespace gemini::server {

// A training round over `num_tensors` of `tensor_bytes`: forward in their order, backward in
// reverse, each gradient leaving after its operator, then the update of all.
inline Trace StepTrace(int32_t num_tensors, int64_t tensor_bytes,
                       const std::string& phase = "train") {
  Trace trace;
  trace.phase = phase;
  for (int32_t i = 0; i < num_tensors; ++i) {
    trace.tensors.push_back({tensor_bytes, TensorGroup::kTrainable, 0});
    trace.updated.push_back(i);
  }
  for (int32_t i = 0; i < 2 * num_tensors; ++i) {
    const bool forward = i < num_tensors;
    const int32_t tensor = forward ? i : 2 * num_tensors - 1 - i;
    trace.operators.push_back({i, 1, 1'000'000, 0});
    trace.uses.push_back({tensor, ChunkKind::kParam, false});
    if (!forward) trace.gradient_outs.push_back({i, tensor});
  }
  trace.operators.push_back({2 * num_tensors, 0, 1'000, 0});
  return trace;
}

}  // namespace gemini::server
