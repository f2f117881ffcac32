// SPDX-License-Identifier: Apache-2.0
// Plans as bytes (gemini/plan.fbs): from the server to its clients.
// Thread: any.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/plan/plan.h"

namespace gemini {

// O(size). `plan` is one that CheckPlan passes.
std::string EncodePlan(const Plan& plan);
// `bytes` begin at a multiple of 8. INVALID_ARGUMENT: they are no verified plan, or as CheckPlan.
absl::StatusOr<Plan> DecodePlan(absl::string_view bytes);

}  // namespace gemini
