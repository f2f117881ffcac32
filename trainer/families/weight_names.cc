// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/weight_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gemini::trainer {

std::string WeightNames::ParameterOf(absl::string_view tensor) const {
  if (tensor == head) return head;
  absl::string_view rest = root;  // Then the root less its first word, and so on.
  while (!absl::StartsWith(tensor, rest)) {
    const size_t dot = rest.find('.');
    rest.remove_prefix(dot == absl::string_view::npos ? rest.size() : dot + 1);
  }
  return absl::StrCat(absl::string_view(root).substr(0, root.size() - rest.size()), tensor);
}

bool WeightNames::IsIgnored(absl::string_view tensor) const {
  return std::ranges::any_of(ignored_endings, [tensor](const std::string& ending) {
    return absl::EndsWith(tensor, ending);
  });
}

// As transformers' classes for sequences, tokens and questions have them.
bool WeightNames::IsInPlaceOfHead(absl::string_view tensor) {
  return absl::StartsWith(tensor, "classifier.") || absl::StartsWith(tensor, "qa_outputs.") ||
         absl::StartsWith(tensor, "score.");
}

// The others are of GPT2DoubleHeadsModel and of TRL's value head.
bool WeightNames::IsOfAnotherTask(absl::string_view tensor) {
  return IsInPlaceOfHead(tensor) || absl::StartsWith(tensor, "multiple_choice_head.") ||
         absl::StartsWith(tensor, "v_head.");
}

}  // namespace gemini::trainer
