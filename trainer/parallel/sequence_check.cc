// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/sequence_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

// As "--sequence-parallel ring of 4 ranks".
std::string KeyOf(const RankLayout& layout) {
  return absl::StrCat("--sequence-parallel ", SequenceSharingName(layout.sequence().sharing),
                      " of ", layout.parts_of_hidden(), " ranks");
}

// `parts`: those of a sequence, which are of equal length.
absl::Status CheckLength(const RankLayout& layout, int64_t parts, int64_t sequence) {
  if (sequence % parts == 0) return absl::OkStatus();
  const int64_t shorter = sequence - sequence % parts;
  return absl::InvalidArgumentError(
      absl::StrCat(KeyOf(layout), ": --sequence ", sequence, " does not divide by ", parts,
                   layout.sequence().zigzag ? ", two parts a rank" : "", ": use ",
                   shorter > 0 ? absl::StrCat(shorter, " or ") : "", shorter + parts,
                   layout.sequence().zigzag && sequence % layout.parts_of_hidden() == 0
                       ? ", or --sequence-layout contiguous"
                       : ""));
}

// `heads` and `kv_heads` are those of a rank that shares no sequence.
absl::Status CheckHeads(const RankLayout& layout, int64_t heads, int64_t kv_heads,
                        int64_t sequence) {
  // Each of more ranks than key and value heads gets a copy of one.
  const auto fits = [&](int64_t ranks) {
    return heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
  };
  const int64_t ranks = layout.parts_of_hidden();
  if (fits(ranks)) return absl::OkStatus();
  std::vector<int64_t> nearest;
  // One rank always has all heads.
  for (int64_t fewer = ranks - 1; nearest.empty(); --fewer) {
    if (fits(fewer) && sequence % fewer == 0) nearest.push_back(fewer);
  }
  for (int64_t more = ranks + 1; more <= heads; ++more) {
    if (!fits(more) || sequence % more != 0) continue;
    nearest.push_back(more);
    break;
  }
  const bool by_heads = heads % ranks != 0;
  return absl::InvalidArgumentError(absl::StrCat(
      KeyOf(layout), ": ", by_heads ? "the attention heads" : "the key and value heads",
      layout.grid().num_ranks() > 1 ? " of a rank of --tensor 1d, " : ", ",
      by_heads ? heads : kv_heads, ", do not divide by ", ranks,
      by_heads ? "" : absl::StrCat(", nor ", ranks, " by them"), ": use --sequence-size ",
      absl::StrJoin(nearest, " or "), " with a multiple of so many ranks"));
}

}  // namespace

absl::Status CheckSequenceSharing(const ModelSpec& spec, const RankLayout& layout,
                                  int64_t sequence) {
  const SequenceSharing sharing = layout.sequence().sharing;
  if (sharing == SequenceSharing::kNone || layout.parts_of_hidden() == 1) return absl::OkStatus();
  const int64_t parts = layout.parts_of_hidden() * (layout.sequence().zigzag ? 2 : 1);
  GEMINI_RETURN_IF_ERROR(CheckLength(layout, parts, sequence));
  if (sharing != SequenceSharing::kUlysses) return absl::OkStatus();
  const int64_t line = layout.grid().num_ranks();
  return CheckHeads(layout, spec.attention.num_heads / line,
                    std::max<int64_t>(spec.attention.num_kv_heads / line, 1), sequence);
}

}  // namespace gemini::trainer
