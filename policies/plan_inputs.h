// SPDX-License-Identifier: Apache-2.0
// What a plan is made from: a packed trace, the room, what things cost, and the policy.
// Units: budgets in bytes.
#pragma once
#include <cstdint>

#include "gemini/cost_model.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"
#include "policies/range_trace.h"

namespace gemini::policies {

struct PlanInputs {
  const RangeTrace& trace;
  TierMap<int64_t> budget_bytes;  // DEVICE: chunks and non-model data. HOST, NVME: chunks.
  CostModel costs;
  PolicyOptions policy;
};

}  // namespace gemini::policies
