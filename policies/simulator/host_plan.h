// SPDX-License-Identifier: Apache-2.0
// Plays a plan on DEVICE and in HOST together: two playbacks in turns. The one of DEVICE says what
// is used in HOST when, the one of HOST when that is there, until a round takes as long as the turn
// before.
// Accuracy: of GPT-2 with HOST at 50% and more of all chunks it settles at once; with less, where
//           the disk is all that counts, what is left after kMostTurns is some hundredths of the
//           round, too long.
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

// Rounds that differ by less, as a part of them, are one.
inline constexpr double kAgreed = 0.002;
inline constexpr int kMostTurns = 6;
// Chunks that a round uses in HOST; of more, HOST is not played, and nothing is foreseen there.
inline constexpr int64_t kMostHostUses = int64_t{1} << 19;

struct PlayedPlan {
  Simulation played;               // But for device_floor_bytes.
  std::vector<HostUse> host_uses;  // Of which Plan has PlannedHostUses. Empty: HOST holds all.
};

// `trace` is the one that the plan was made of, with the gradients that it keeps; `host_bytes` as
// in Simulate. Once `interrupt` returns an error, the result is void.
PlayedPlan PlayInHost(const RangeTrace& trace, const Plan& plan, const CostModel& costs,
                      int64_t host_bytes, bool with_events, const PlanInterrupt& interrupt = {});

}  // namespace gemini::policies
