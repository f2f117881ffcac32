// SPDX-License-Identifier: Apache-2.0
// Divides the norm blocks of a bundle's pieces (client/kernels/grad_norm.h) among threads. A part
// of the bundle owns the blocks that begin in it, so each block is summed by one thread, in its
// order.
// Units: elements of the bundle; blocks and elements of a piece.
#pragma once
#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "client/kernels/grad_norm.h"
#include "client/update/bundle_update.h"

namespace gemini::client {

struct PieceBlocks {
  int64_t first_block = 0;
  int64_t first_element = 0;
  int64_t num_elements = 0;  // 0 if no block begins there.
};

// Returns the blocks of `piece`, of elements of `width` bytes, that begin in [part_begin,
// part_end).
inline PieceBlocks BlocksBegunIn(int64_t part_begin, int64_t part_end, const TensorPiece& piece,
                                 int64_t width) {
  const int64_t first = piece.chunk_offset_bytes / width;
  const int64_t count = piece.size_bytes / width;
  const auto blocks_below = [&](int64_t element) {
    return NumNormBlocks(std::clamp<int64_t>(element - first, 0, count));
  };
  const int64_t block = blocks_below(part_begin);
  const int64_t begin = block * kNormBlockElements;
  const int64_t end = std::min(blocks_below(part_end) * kNormBlockElements, count);
  return {block, begin, std::max<int64_t>(0, end - begin)};
}

// Returns the elements from the bundle's first to the last of `pieces`, which are in chunk order.
inline int64_t ElementsToEnd(absl::Span<const TensorPiece> pieces, int64_t width) {
  if (pieces.empty()) return 0;
  return (pieces.back().chunk_offset_bytes + pieces.back().size_bytes) / width;
}

}  // namespace gemini::client
