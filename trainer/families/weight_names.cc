// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/weight_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gemini::trainer {

std::string WeightNames::ParameterOf(absl::string_view tensor) const {
  if (tensor == head) return head;
  // The root, then the root less its first word, and so on.
  size_t begin = 0;
  while (begin < root.size()) {
    if (absl::StartsWith(tensor, absl::string_view(root).substr(begin))) break;
    begin = root.find('.', begin) + 1;
  }
  return absl::StrCat(absl::string_view(root).substr(0, begin), tensor);
}

bool WeightNames::IsIgnored(absl::string_view tensor) const {
  return std::ranges::any_of(ignored_endings, [tensor](const std::string& ending) {
    return absl::EndsWith(tensor, ending);
  });
}

}  // namespace gemini::trainer
