// SPDX-License-Identifier: Apache-2.0
// Tells whether a file of data is the one that a run began with, without reading all of it.
#pragma once
#include <cstdint>

namespace gemini::trainer {

struct TokenFingerprint {
  int64_t num_tokens = 0;
  int64_t file_bytes = 0;
  uint32_t ends_crc32c = 0;  // Of the first MiB and the last one, as the file's reader takes them.
  bool operator==(const TokenFingerprint&) const = default;
};

}  // namespace gemini::trainer
