// SPDX-License-Identifier: Apache-2.0
// Holds what a plan is made from: a packed trace, the budgets, the costs and the policy.
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

// Is called while a plan is made, at least every few tenths of a second. An error ends the
// planning, which returns it. If the error is DEADLINE_EXCEEDED and there is a plan already, or one
// whose chunks have their slots and times, the best plan so far is returned instead.
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
