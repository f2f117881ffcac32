// SPDX-License-Identifier: Apache-2.0
// Plays a plan on DEVICE and in HOST together, with two playbacks in turns. The playback of DEVICE
// determines what is used in HOST and when, and the playback of HOST determines when that is there.
// The turns end when a round takes as long as in the turn before.
// Accuracy: for GPT-2 with HOST at 50% and more of all chunks the rounds agree at once. With less,
// where the disk dominates, the round after kMostTurns is still some hundredths too long.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/host_uses.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Rounds that differ by a smaller share agree.
inline constexpr double kAgreed = 0.002;
inline constexpr int kMostTurns = 6;
// The most chunks that a round may use in HOST. With more, HOST is not played and no use is
// predicted.
inline constexpr int64_t kMostHostUses = int64_t{1} << 19;

struct PlayedPlan {
  Simulation played;               // Except for device_floor_bytes.
  std::vector<HostUse> host_uses;  // Plan has their PlannedHostUses. Empty if HOST holds all.
};

// Plays `plan`. `trace` is the trace of the plan, with the gradients that it keeps; `host_bytes` is
// as in Simulate. Once `interrupt` returns an error, the result is void.
PlayedPlan PlayInHost(const RangeTrace& trace, const Plan& plan, const CostModel& costs,
                      int64_t host_bytes, bool with_events, const PlanInterrupt& interrupt = {});

}  // namespace gemini::policies
