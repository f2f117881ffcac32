// SPDX-License-Identifier: Apache-2.0
#include "gemini/policy_options.h"

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/nearest_name.h"

namespace gemini {
namespace {

constexpr std::array<absl::string_view, 5> kNames = {"auto", "static", "cpu", "cuda", "online"};

}  // namespace

absl::StatusOr<PolicyKind> ParsePolicyKind(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<PolicyKind>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no policy is named '", absl::CEscape(name.substr(0, 64)), "', only ",
                   absl::StrJoin(kNames, ", "), DidYouMean(name, kNames)));
}

absl::string_view PolicyKindName(PolicyKind kind) { return kNames[static_cast<int>(kind)]; }

}  // namespace gemini
