// SPDX-License-Identifier: Apache-2.0
#include "server/device_promises.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace gemini::server {

void DevicePromises::Update(const Sessions& sessions, const TierStore& device) {
  if (device.slab_bytes() != 0) return;
  std::vector<Promise> promises;
  for (const auto& [id, session] : sessions.all()) {
    if (!session->lease.has_value() || session->reclaiming()) continue;
    const Lease& lease = *session->lease;
    Promise& promise = promises.emplace_back();
    promise.granted_bytes = lease.terms.granted[Tier::kDevice];
    if (!lease.arena.extents.empty()) promise.arena_fd = lease.arena.extents.front().fd.get();
  }
  MutexLock lock(mutex_);
  promises_ = std::move(promises);
}

int64_t DevicePromises::Bytes() const {
  MutexLock lock(mutex_);
  int64_t bytes = 0;
  for (const Promise& promise : promises_) {
    struct stat info;
    const bool is_made = promise.arena_fd >= 0 && ::fstat(promise.arena_fd, &info) == 0;
    const int64_t touched_bytes = is_made ? info.st_blocks * 512 : 0;  // The unit of stat(2).
    bytes += std::max<int64_t>(0, promise.granted_bytes - touched_bytes);
  }
  return bytes;
}

}  // namespace gemini::server
