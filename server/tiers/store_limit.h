// SPDX-License-Identifier: Apache-2.0
// Counts bytes taken up to a limit.
// Thread: any.
#pragma once
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "gemini/system/mutex.h"
#include "gemini/tier.h"

namespace gemini::server {

class StoreLimit {
 public:
  StoreLimit(Tier tier, int64_t capacity_bytes) : tier_(tier), capacity_bytes_(capacity_bytes) {}

  // RESOURCE_EXHAUSTED, with the numbers: fewer than `size_bytes` (>= 0) are left; takes nothing.
  absl::Status Take(int64_t size_bytes);
  void GiveBack(int64_t size_bytes);
  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t taken_bytes() const;

 private:
  const Tier tier_;
  const int64_t capacity_bytes_;
  mutable Mutex mutex_;
  int64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemini::server
