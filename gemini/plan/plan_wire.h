// SPDX-License-Identifier: Apache-2.0
// Encodes plans as bytes (gemini/plan.fbs), which the server sends to its clients.
// Thread: any.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/plan/plan.h"

namespace gemini {

// Encodes `plan`, which passes CheckPlan. O(size).
std::string EncodePlan(const Plan& plan);
// Decodes `bytes`, which begin at a multiple of 8. INVALID_ARGUMENT: they are no verified plan, or
// as CheckPlan.
absl::StatusOr<Plan> DecodePlan(absl::string_view bytes);

}  // namespace gemini
