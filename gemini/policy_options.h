// SPDX-License-Identifier: Apache-2.0
// Which policy places chunks, as a user names it.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

enum class PolicyKind : uint8_t {
  kAuto = 0,    // The planner, and each preset simulated: the best of them.
  kStatic = 1,  // The fractions below stay on DEVICE; other parameters come for each use.
  kCpu = 2,     // static with nothing kept.
  kCuda = 3,    // static with everything kept: an error when it does not fit.
  kOnline = 4,  // No plan: least recently used.
};

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kAuto;
  // 0 to 1, of kStatic, first used first: of the parameters' chunks, and of the trained ones those
  // whose moments stay and which are updated there.
  double param_fraction = 0;
  double optimizer_fraction = 0;
  bool operator==(const PolicyOptions&) const = default;
};

// "auto", "static", "cpu", "cuda" or "online". INVALID_ARGUMENT: another name; suggests the
// nearest.
absl::StatusOr<PolicyKind> ParsePolicyKind(absl::string_view name);
absl::string_view PolicyKindName(PolicyKind kind);

}  // namespace gemini
