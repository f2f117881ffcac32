// SPDX-License-Identifier: Apache-2.0
// Defines a part of a tensor's bytes, for readers that need no more of the tensor.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"

namespace gemini {

struct ByteRange {
  int64_t offset_bytes = 0;  // >= 0.
  // >= 0. What goes beyond the tensor's end means nothing: by default, all behind the offset.
  int64_t size_bytes = std::numeric_limits<int64_t>::max();

  int64_t end_bytes() const {
    const int64_t most = std::numeric_limits<int64_t>::max() - offset_bytes;
    return offset_bytes + std::min(size_bytes, most);
  }
  // Whether any of the `size` bytes at `offset` is in the range.
  bool Overlaps(int64_t offset, int64_t size) const {
    return std::max(offset, offset_bytes) < std::min(offset + size, end_bytes());
  }
  // Returns what of the bytes at `offset` is in the range.
  absl::Span<const std::byte> PartOf(int64_t offset, absl::Span<const std::byte> bytes) const {
    if (!Overlaps(offset, static_cast<int64_t>(bytes.size()))) return {};
    const int64_t first = std::max(offset_bytes - offset, int64_t{0});
    const int64_t end = std::min(end_bytes() - offset, static_cast<int64_t>(bytes.size()));
    return bytes.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
  }
};

}  // namespace gemini
