// SPDX-License-Identifier: Apache-2.0
// Compares what others have published about training by many ranks with what the formulas and
// simulations of policies/ say: in which order the ways of sharing stand, and by which factors they
// differ. A factor of ours that is off by more than half of theirs is explained, not fitted.
#pragma once
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace gemini::tools {

struct PublishedClaim {
  std::string what;
  std::string source;  // The paper's number at arXiv, or a document.
  std::string by;      // How ours was found: "formula", "playback", "forecast", "search".
  std::string theirs;
  std::string ours;
  bool holds = false;  // Their order, and where they have formulas their numbers.
  std::string remark;  // Why a factor differs, or what a simulation cannot show.
};

// Computes all of them, in a second. The same on each machine.
std::vector<PublishedClaim> CheckPublishedClaims();
// Returns a table in Markdown.
std::string ClaimsTable(absl::Span<const PublishedClaim> claims);

}  // namespace gemini::tools
