// SPDX-License-Identifier: Apache-2.0
#include "gemini/nearest_name.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gemini {

int64_t EditDistance(absl::string_view a, absl::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<int64_t> table((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> int64_t& { return table[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = static_cast<int64_t>(i);
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      at(i, j) = std::min(
          {at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), b.size());
}

std::string NearestName(absl::string_view unknown, absl::Span<const absl::string_view> names) {
  // No name is longer; a text of a megabyte need not be compared.
  constexpr size_t kLongestName = 64;
  if (unknown.size() > kLongestName) return "";
  const std::string dashed = absl::StrReplaceAll(unknown, {{"_", "-"}});
  int64_t best = std::max<int64_t>(2, static_cast<int64_t>(unknown.size()) / 3) + 1;
  absl::string_view nearest;
  for (absl::string_view name : names) {
    const int64_t distance = EditDistance(dashed, name);
    if (distance < best) {
      best = distance;
      nearest = name;
    }
  }
  return std::string(nearest);
}

std::string DidYouMean(absl::string_view unknown, absl::Span<const absl::string_view> names,
                       absl::string_view prefix) {
  const std::string nearest = NearestName(unknown, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", prefix, nearest, "'?");
}

}  // namespace gemini
