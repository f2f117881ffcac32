// SPDX-License-Identifier: Apache-2.0
#include "gemini/crc32c.h"

#include <isa-l/crc.h>

namespace gemini {

uint32_t Crc32c(absl::Span<const std::byte> bytes) {
  // ISA-L's crc32_iscsi takes the length as an int, and leaves both inversions to its caller.
  constexpr size_t kPieceBytes = size_t{1} << 30;
  uint32_t crc = ~uint32_t{0};
  while (!bytes.empty()) {
    const absl::Span<const std::byte> piece = bytes.subspan(0, kPieceBytes);
    // It only reads: its signature just does not say so.
    auto* const data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(piece.data()));
    crc = ::crc32_iscsi(data, static_cast<int>(piece.size()), crc);
    bytes.remove_prefix(piece.size());
  }
  return ~crc;
}

}  // namespace gemini
