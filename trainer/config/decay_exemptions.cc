// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/decay_exemptions.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gemini::trainer {
namespace {

bool Matches(const std::string& pattern, absl::string_view name) {
  return ::fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

}  // namespace

absl::StatusOr<DecayExemptions> DecayExemptions::Parse(absl::string_view text) {
  DecayExemptions exemptions;
  if (text.empty()) return exemptions;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view pattern = absl::StripAsciiWhitespace(part);
    if (pattern.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' has an empty pattern: write NAME,NAME such as *.bias,*.ln_*"));
    }
    exemptions.patterns_.emplace_back(pattern);
  }
  return exemptions;
}

bool DecayExemptions::Exempts(absl::string_view name) const {
  return std::ranges::any_of(patterns_,
                             [name](const std::string& pattern) { return Matches(pattern, name); });
}

absl::Status DecayExemptions::CheckAgainst(absl::Span<const std::string> names) const {
  for (const std::string& pattern : patterns_) {
    if (std::ranges::any_of(names, [&](const std::string& name) { return Matches(pattern, name); }))
      continue;
    return absl::NotFoundError(
        absl::StrCat("--no-decay: no parameter's name matches '", pattern, "'",
                     names.empty() ? "" : absl::StrCat("; the first one is called ", names[0])));
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
