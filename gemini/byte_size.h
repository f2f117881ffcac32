// SPDX-License-Identifier: Apache-2.0
// Reads and writes byte counts as people write them: "64MiB", "2GiB", "4096". Units are binary.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// Parses a whole or decimal number, an optional space, and nothing, B, KiB, MiB, GiB or TiB, as in
// "1.5GiB". INVALID_ARGUMENT: anything else, a negative number, or one above 2^62. For a decimal
// unit such as "GB" the message asks for a binary one.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

// Returns the size with at most one decimal in the largest unit that gives at least 1: "0 B", "1.5
// GiB", "-3 MiB". This is for people: ParseByteSize does not recover what is rounded off.
std::string FormatByteSize(int64_t size_bytes);
// Returns the same, rounded up, for messages that say how much is needed at least.
std::string FormatByteSizeUp(int64_t size_bytes);

// Returns size_bytes rounded up to a multiple of `alignment` (> 0). size_bytes >= 0.
constexpr int64_t RoundUp(int64_t size_bytes, int64_t alignment) {
  return (size_bytes + alignment - 1) / alignment * alignment;
}

}  // namespace gemini
