// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/weight_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gemini::trainer {
namespace {

// What transformers' classes name their heads, which stand beside the model itself: those of
// language models, and of sequences, tokens and questions. The last two are of pair trunks.
constexpr absl::string_view kHeads[] = {"lm_head.",         "embed_out.",     "cls.",
                                        "classifier.",      "qa_outputs.",    "score.",
                                        "masked_msa_head.", "distogram_head."};
// GPT2DoubleHeadsModel and TRL's value head have these beside a language model's.
constexpr absl::string_view kHeadsBeside[] = {"multiple_choice_head.", "v_head."};
// A part of the model itself that only some tasks have.
constexpr absl::string_view kPooler = "pooler.";

template <typename Names>
bool BeginsWithOne(absl::string_view tensor, const Names& names) {
  return std::ranges::any_of(
      names, [tensor](absl::string_view name) { return absl::StartsWith(tensor, name); });
}

}  // namespace

std::string WeightNames::ParameterOf(absl::string_view tensor) const {
  for (const auto& [old, now] : old_endings) {
    if (!absl::EndsWith(tensor, old)) continue;
    tensor.remove_suffix(old.size());
    return ParameterOf(absl::StrCat(tensor, now));
  }
  if (IsInPlaceOfHead(tensor)) return std::string(tensor);
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

bool WeightNames::IsOfOwnHead(absl::string_view parameter) const {
  return BeginsWithOne(parameter, own_heads);
}

bool WeightNames::IsInPlaceOfHead(absl::string_view parameter) const {
  return BeginsWithOne(parameter, kHeads) || BeginsWithOne(parameter, other_heads);
}

bool WeightNames::IsOfAnotherTask(absl::string_view parameter) const {
  // What stands beside a head that is tied is of it, too, such as a bias that nobody expects.
  const absl::string_view layer = absl::string_view(head).substr(0, head.rfind('.') + 1);
  if (IsOfOwnHead(parameter) || (!head.empty() && absl::StartsWith(parameter, layer))) return false;
  return IsInPlaceOfHead(parameter) || BeginsWithOne(parameter, kHeadsBeside) ||
         absl::StartsWith(parameter, absl::StrCat(root, kPooler));
}

}  // namespace gemini::trainer
