// SPDX-License-Identifier: Apache-2.0
#include "trainer/tasks/masking.h"

#include <array>
#include <cstddef>
#include <limits>

#include "gemini/philox.h"

namespace gemini::trainer {
namespace {

// Of 2^32: a token is hidden, it then becomes the mask token, and it becomes any other or that.
constexpr uint32_t kHidden = 644'245'094;     // 0.15
constexpr uint32_t kMasked = 3'435'973'837;   // 0.8
constexpr uint32_t kChanged = 3'865'470'566;  // 0.9

std::array<uint32_t, 4> DrawAt(const MaskDraw& draw, size_t position) {
  const auto row = static_cast<uint64_t>(draw.row);
  return Philox({static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
                 static_cast<uint32_t>(position), draw.is_evaluation ? 1U : 0U},
                draw.seed);
}

// Returns what a hidden token becomes.
int64_t Hidden(int64_t token, const std::array<uint32_t, 4>& words, const MaskTokens& tokens) {
  if (words[1] < kMasked) return tokens.mask;
  if (words[1] >= kChanged) return token;
  // The high half of the product is below the vocabulary's size.
  return static_cast<int64_t>((uint64_t{words[2]} * static_cast<uint64_t>(tokens.vocab_size)) >>
                              32);
}

}  // namespace

int64_t MaskTokensOfRow(const MaskDraw& draw, const MaskTokens& tokens, absl::Span<int64_t> row,
                        absl::Span<int64_t> labels) {
  int64_t count = 0;
  size_t closest = row.size();
  int64_t label_of_closest = 0;
  uint32_t least = std::numeric_limits<uint32_t>::max();
  for (size_t i = 0; i < row.size(); ++i) {
    if (labels[i] < 0) continue;
    const std::array<uint32_t, 4> words = DrawAt(draw, i);
    if (words[0] < kHidden) {
      row[i] = Hidden(row[i], words, tokens);
      ++count;
      continue;
    }
    if (closest == row.size() || words[0] < least) {
      closest = i;
      least = words[0];
      label_of_closest = labels[i];
    }
    labels[i] = -1;
  }
  if (count > 0 || closest == row.size()) return count;
  labels[closest] = label_of_closest;
  row[closest] = Hidden(row[closest], DrawAt(draw, closest), tokens);
  return 1;
}

}  // namespace gemini::trainer
