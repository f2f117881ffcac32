// SPDX-License-Identifier: Apache-2.0
// Finds the known name closest to an unknown one, for "did you mean" messages.
// Source: the restricted edit distance (Damerau, CACM 7(3), 1964): insertion, deletion, change and
// the swap of two neighbours cost 1 each.
#pragma once
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gemini {

// Returns the number of edits between `a` and `b`. O(|a| |b|).
int64_t EditDistance(absl::string_view a, absl::string_view b);

// Returns "; did you mean 'NAME'?" for the nearest of `names`, with `prefix` before it, or "" when
// none is near.
std::string DidYouMean(absl::string_view unknown, absl::Span<const absl::string_view> names,
                       absl::string_view prefix = "");

// Returns the name with the smallest distance to `unknown`, the first among equals. Returns "" when
// none is within a third of its length (but at least 2), because a farther one would be no help.
// '_' counts as '-'.
std::string NearestName(absl::string_view unknown, absl::Span<const absl::string_view> names);

}  // namespace gemini
