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

bool WeightNames::IsOfAnotherTask(absl::string_view tensor) {
  // As transformers' classes for sequences, tokens, questions and choices, and TRL's for values,
  // have them beside the model.
  static constexpr absl::string_view kHeads[] = {"classifier.", "multiple_choice_head.",
                                                 "qa_outputs.", "score.", "v_head."};
  return std::ranges::any_of(
      kHeads, [tensor](absl::string_view head) { return absl::StartsWith(tensor, head); });
}

}  // namespace gemini::trainer
