// SPDX-License-Identifier: Apache-2.0
// The inputs of a plan: a packed trace, the budgets, the costs and the policy.
// Units: budgets in bytes.
#pragma once
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "gemini/cost_model.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Asked between the rounds that are played for a plan and inside long ones, every few tenths of a
// second at most: an error ends the planning, which returns it. DEADLINE_EXCEEDED is returned only
// while there is no plan yet: later the best one so far is.
using PlanInterrupt = std::function<absl::Status()>;

struct PlanInputs {
  const RangeTrace& trace;
  // For DEVICE, chunks and non-model data; for HOST and NVME, chunks.
  TierMap<int64_t> budget_bytes;
  CostModel costs;
  PolicyOptions policy;
  PlanInterrupt interrupt = {};  // May be empty.
};

}  // namespace gemini::policies
