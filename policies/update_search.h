// SPDX-License-Identifier: Apache-2.0
// Looks for updates on DEVICE that make the round faster: those of the first so many ranges. What is used
// first has its gradients last, and the next round begins with it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gemini/plan.h"
#include "policies/plan_inputs.h"
#include "policies/replacement.h"

namespace gemini::policies {

// The ranges that the round may update on DEVICE, first used first.
std::vector<int32_t> Updatable(const PlanInputs& in);

// Replaces `best`, the best plan without, by the best one with some, if there is one that is better. Plans
// are made by `rule`, which made `best` or is as good, and named after it.
void SearchUpdates(const PlanInputs& in, const ReplacementRule& rule, std::string rule_name,
                   Plan& best);

}  // namespace gemini::policies
