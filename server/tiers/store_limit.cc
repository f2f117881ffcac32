// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/store_limit.h"

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/check.h"

namespace gemini::server {

absl::Status StoreLimit::Take(int64_t size_bytes) {
  MutexLock lock(mutex_);
  const int64_t left_bytes = capacity_bytes_ - taken_bytes_;
  if (size_bytes > left_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", FormatByteSize(size_bytes), " of ", TierName(tier_), ", ",
                     FormatByteSize(left_bytes), " of ", FormatByteSize(capacity_bytes_), " left"));
  }
  taken_bytes_ += size_bytes;
  return absl::OkStatus();
}

void StoreLimit::GiveBack(int64_t size_bytes) {
  MutexLock lock(mutex_);
  GEMINI_CHECK(size_bytes >= 0 && size_bytes <= taken_bytes_);
  taken_bytes_ -= size_bytes;
}

int64_t StoreLimit::taken_bytes() const {
  MutexLock lock(mutex_);
  return taken_bytes_;
}

}  // namespace gemini::server
