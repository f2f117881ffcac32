// SPDX-License-Identifier: Apache-2.0
// By what a plan was made, beside its trace: with both, the same plan comes out again.
#pragma once
#include <cstdint>

#include "gemini/cost_model.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"

namespace gemini::server {

struct PlanInputsUsed {
  TierMap<int64_t> budget_bytes;
  int64_t chunk_bytes = 0;
  PolicyOptions policy;
  CostModel costs;
};

}  // namespace gemini::server
