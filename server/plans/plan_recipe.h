// SPDX-License-Identifier: Apache-2.0
// Records what a plan was made with beside its trace, so that the same recipe and the same trace
// make the same plan again.
#pragma once
#include <cstdint>

#include "gemini/cost_model.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"

namespace gemini::server {

struct PlanRecipe {
  TierMap<int64_t> budget_bytes;
  int64_t chunk_bytes = 0;
  PolicyOptions policy;
  CostModel costs;
};

}  // namespace gemini::server
