// SPDX-License-Identifier: Apache-2.0
// Defines which policy places chunks, as a user names it.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

enum class PolicyKind : uint8_t {
  kAuto = 0,    // The best of the planner and each preset, by simulation.
  kStatic = 1,  // The fractions below stay on DEVICE; other parameters are fetched for each use.
  kCpu = 2,     // As kStatic with nothing kept.
  kCuda = 3,    // As kStatic with everything kept; an error if it does not fit.
  kOnline = 4,  // No plan: evicts the least recently used.
};

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kAuto;
  // From 0 to 1, for kStatic: the share of the parameters' chunks that stay, and the share of the
  // trained chunks whose moments stay and which are updated on DEVICE. Those used first are taken.
  double param_fraction = 0;
  double optimizer_fraction = 0;
  bool operator==(const PolicyOptions&) const = default;
};

// Parses "auto", "static", "cpu", "cuda" or "online". INVALID_ARGUMENT: another name; the message
// suggests the nearest.
absl::StatusOr<PolicyKind> ParsePolicyKind(absl::string_view name);
absl::string_view PolicyKindName(PolicyKind kind);

}  // namespace gemini
