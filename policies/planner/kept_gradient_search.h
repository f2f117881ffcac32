// SPDX-License-Identifier: Apache-2.0
// Looks for gradients that the round should keep on DEVICE until its update
// (policies/trace/kept_gradients.h). It tries updates on DEVICE for a number of the first ranges,
// and late gradients for a number of ranges behind them. The range used first has its gradients
// last, and the next round begins with it. Either number is doubled while that makes the round no
// slower, and then lengths between are tried. Each choice is a plan that is played.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gemini/plan/plan.h"
#include "policies/planner/replacement.h"
#include "policies/trace/plan_inputs.h"

namespace gemini::policies {

// Returns the ranges whose gradients the round may keep, first used first: MayKeepGradients, or
// none if nothing is to be computed on DEVICE for the update.
std::vector<int32_t> Keepable(const PlanInputs& in);

// Replaces `best`, the best plan that keeps none, by the best one that keeps some, if that is
// better and no slower. Plans are made by `rule`, which made `best` or is as good, and named after
// it. It tries as many as take a quarter of the half second that a plan may take in all. That is
// three dozen, or fewer for a trace of thousands of uses, down to none for one of a hundred
// thousand with tensors that span chunks.
void SearchKeptGradients(const PlanInputs& in, const ReplacementRule& rule, std::string rule_name,
                         Plan& best);

}  // namespace gemini::policies
