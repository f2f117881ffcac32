// SPDX-License-Identifier: Apache-2.0
// Counts the host memory that leases were granted as DEVICE and have not touched yet. The machine
// still counts it as free, so whoever grants more of that must leave it.
// Thread: Update on the server thread; Bytes on any, which workers call right before they make what
//         takes memory.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gemini/system/mutex.h"
#include "server/sessions.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

class DevicePromises {
 public:
  // Takes up all leases that are not being reclaimed, as they are now. To be called when a lease
  // is granted, made, or changed, and before one's memory is destroyed. Where DEVICE is a GPU's,
  // nothing is promised.
  void Update(const Sessions& sessions, const TierStore& device);
  // Returns the bytes of DEVICE of all leases, without those that have pages by now.
  int64_t Bytes() const;

 private:
  struct Promise {
    int arena_fd = -1;  // The lease's; none: it is being made.
    int64_t granted_bytes = 0;
  };
  mutable Mutex mutex_;
  std::vector<Promise> promises_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemini::server
