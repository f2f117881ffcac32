// SPDX-License-Identifier: Apache-2.0
// Computes how the tensors of a unit are cut into shards, one for each rank (ZeRO: Rajbhandari et
// al., arXiv:1910.02054). The tensors lie one after the other in a buffer. Each begins at a
// multiple of a block's elements, and the buffer is padded until every rank's part is as many whole
// blocks as any other's. Rank r has the r-th part. So no part cuts a block, and what is computed by
// blocks, gradient norms and moments of 8 bits, has the same bits as without shards.
// Units: elements, whatever their type.
// Pure: every rank computes the same cut and asks nobody.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gemini::trainer {

// A run of a tensor's elements that lies in one rank's part.
struct ShardPiece {
  int64_t tensor = 0;  // Its place in the unit.
  int64_t first = 0;   // In the tensor: a multiple of a block.
  int64_t count = 0;   // > 0. A multiple of a block, unless the tensor ends with it.
  int64_t place = 0;   // In the part: a multiple of a block.
  bool operator==(const ShardPiece&) const = default;
};

class ShardCut {
 public:
  // `sizes` are the tensors' elements (>= 0), num_ranks >= 1, block_elements >= 1.
  ShardCut(absl::Span<const int64_t> sizes, int64_t num_ranks, int64_t block_elements);

  int64_t num_ranks() const { return num_ranks_; }
  int64_t size(int64_t tensor) const { return sizes_[static_cast<size_t>(tensor)]; }
  // Returns the buffer's length: that of all parts, with what pads them.
  int64_t num_elements() const { return num_ranks_ * part_elements_; }
  int64_t part_elements() const { return part_elements_; }
  // Returns where a tensor begins in the buffer. `tensor` is its place in the unit.
  int64_t place(int64_t tensor) const { return places_[static_cast<size_t>(tensor)]; }

  // Returns what a rank has, in the buffer's order. It may have nothing. `rank` is at least 0 and
  // below num_ranks().
  std::vector<ShardPiece> PiecesOf(int64_t rank) const;

 private:
  const std::vector<int64_t> sizes_;
  const int64_t num_ranks_;
  std::vector<int64_t> places_;
  int64_t part_elements_ = 0;
};

}  // namespace gemini::trainer
