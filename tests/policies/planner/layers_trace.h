// SPDX-License-Identifier: Apache-2.0
// The trace of a small model whose plans can be counted by hand, and plans for it.
#pragma once
#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "gemini/plan/trace.h"
#include "policies/planner/planner.h"

namespace gemini::policies {

// Layers of one chunk, forward and backward, and the update. Gradients are complete in backward.
inline Trace LayersTrace(int32_t num_layers, int64_t chunk_bytes, int64_t compute_ns,
                         const StateFormat& format = {}) {
  Trace trace;
  trace.phase = "train";
  const auto add = [&](int32_t layer) {
    trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 1, compute_ns, 0});
    trace.uses.push_back({.tensor = layer});
  };
  for (int32_t i = 0; i < num_layers; ++i) {
    trace.tensors.push_back({.size_bytes = chunk_bytes, .format = format});
    trace.updated.push_back(i);
    add(i);
  }
  for (int32_t i = num_layers - 1; i >= 0; --i) {
    add(i);
    trace.gradient_outs.push_back({trace.num_positions() - 1, i});
  }
  trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 0, 10, 0});
  return trace;
}

// With HOST for all of it.
inline absl::StatusOr<Plan> PlanFor(const RangeTrace& trace, int64_t device_bytes,
                                    const CostModel& costs, PolicyOptions policy = {}) {
  PlanInputs inputs = {.trace = trace, .budget_bytes = {}, .costs = costs, .policy = policy};
  inputs.budget_bytes[Tier::kDevice] = device_bytes;
  inputs.budget_bytes[Tier::kHost] = std::numeric_limits<int64_t>::max();
  return MakePlan(inputs);
}

}  // namespace gemini::policies
