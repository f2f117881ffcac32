// SPDX-License-Identifier: Apache-2.0
// Byte counts as people write them: "64MiB", "2GiB", "4096". Binary units only.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// Parses a whole or decimal number followed by nothing, B, KiB, MiB, GiB or TiB, e.g. "1.5GiB",
// with an optional space between. INVALID_ARGUMENT: anything else (a decimal unit such as "GB" is
// told to be written in binary units), a negative number, or one above 2^62.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

// Writes with at most one decimal in the largest unit that gives at least 1: "0 B", "1.5 GiB",
// "-3 MiB". For people; what it drops does not come back through ParseByteSize.
std::string FormatByteSize(int64_t size_bytes);
// The same, rounded up: what is "at least" needed, which is then enough.
std::string FormatByteSizeUp(int64_t size_bytes);

// Returns size_bytes rounded up to a multiple of `alignment` (> 0). size_bytes >= 0.
constexpr int64_t RoundUp(int64_t size_bytes, int64_t alignment) {
  return (size_bytes + alignment - 1) / alignment * alignment;
}

}  // namespace gemini
