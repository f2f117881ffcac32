// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/shard_cut.h"

#include <algorithm>

namespace gemini::trainer {
namespace {

int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

ShardCut::ShardCut(absl::Span<const int64_t> sizes, int64_t num_ranks, int64_t block_elements)
    : sizes_(sizes.begin(), sizes.end()), num_ranks_(num_ranks) {
  int64_t end = 0;
  for (const int64_t size : sizes_) {
    places_.push_back(end);
    end += RoundUp(size, block_elements);
  }
  part_elements_ = RoundUp(end, num_ranks * block_elements) / num_ranks;
}

std::vector<ShardPiece> ShardCut::PiecesOf(int64_t rank) const {
  const int64_t part_begin = rank * part_elements_;
  const int64_t part_end = part_begin + part_elements_;
  std::vector<ShardPiece> pieces;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const int64_t begin = std::max(part_begin, places_[i]);
    const int64_t end = std::min(part_end, places_[i] + sizes_[i]);
    if (begin >= end) continue;
    pieces.push_back({.tensor = static_cast<int64_t>(i),
                      .first = begin - places_[i],
                      .count = end - begin,
                      .place = begin - part_begin});
  }
  return pieces;
}

}  // namespace gemini::trainer
