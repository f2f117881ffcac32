// SPDX-License-Identifier: Apache-2.0
#include "server/device_promises.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

namespace gemini::server {
namespace {

// The DEVICE of the session's lease that is not in use yet. In use are pages of its arena and, as
// far as the job says so, tensors outside of it, which the budget of DEVICE counts too.
int64_t PromisedBytes(const PeerSession& session) {
  if (!session.lease.has_value() || session.reclaiming()) return 0;
  const Lease& lease = *session.lease;
  int64_t used_bytes = 0;
  struct stat info;
  if (!lease.arena.extents.empty() && ::fstat(lease.arena.extents.front().fd.get(), &info) == 0) {
    used_bytes = info.st_blocks * 512;  // The unit of stat(2).
  }
  int64_t non_model_bytes = 0;  // All spaces of a session state the same number.
  for (const auto& [id, opened] : session.spaces) {
    if (opened.destroying) continue;
    non_model_bytes = std::max(non_model_bytes, opened.space->reader().DeviceNonModelBytes());
  }
  const int64_t left_bytes = std::max<int64_t>(0, lease.terms.granted[Tier::kDevice] - used_bytes);
  return left_bytes - std::min(non_model_bytes, left_bytes);
}

}  // namespace

PromisedDevice DevicePromises::Promised() const {
  PromisedDevice promised;
  for (const auto& [id, session] : sessions_.all()) promised += PromisedTo(*session);
  return promised;
}

PromisedDevice DevicePromises::PromisedTo(const PeerSession& session) const {
  if (device_.slab_bytes() > 0) return {};
  const int64_t bytes = PromisedBytes(session);
  return {.bytes = bytes, .charged_here_bytes = session.charged_here ? bytes : 0};
}

int64_t DevicePromises::DeviceRoom(const HostMemories& memories, const PromisedDevice& promised,
                                   bool charged_here) const {
  if (device_.slab_bytes() > 0) return std::numeric_limits<int64_t>::max();
  return HostRoom(memories, promised, charged_here);
}

absl::Status DevicePromises::CheckDevice(const HostMemories& memories,
                                         const PromisedDevice& promised, int64_t size_bytes,
                                         bool charged_here) const {
  if (device_.slab_bytes() > 0) return absl::OkStatus();
  return CheckHostRoom(memories, size_bytes, promised, charged_here,
                       "DEVICE, which is host memory here,", "or ask for less");
}

}  // namespace gemini::server
