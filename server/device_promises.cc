// SPDX-License-Identifier: Apache-2.0
#include "server/device_promises.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "absl/status/statusor.h"

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

void DevicePromises::ForEachMemory(
    bool charged_here,
    absl::FunctionRef<void(const HostMemory& memory, int64_t promised_bytes)> look) const {
  if (device_.slab_bytes() > 0) return;
  int64_t promised_bytes = 0, promised_here_bytes = 0;
  for (const auto& [id, session] : sessions_.all()) {
    const int64_t bytes = PromisedBytes(*session);
    promised_bytes += bytes;
    if (bytes > 0 && session->lease->charged_here) promised_here_bytes += bytes;
  }
  const absl::StatusOr<HostMemory> machine = ReadMachineMemory();
  if (machine.ok()) look(*machine, promised_bytes);
  if (!charged_here) return;
  const absl::StatusOr<HostMemory> tightest = ReadHostMemory();
  if (tightest.ok()) look(*tightest, promised_here_bytes);
}

int64_t DevicePromises::DeviceRoom(bool charged_here) const {
  int64_t room_bytes = std::numeric_limits<int64_t>::max();
  ForEachMemory(charged_here, [&](const HostMemory& memory, int64_t promised_bytes) {
    room_bytes = std::min(room_bytes, RoomIn(memory, promised_bytes));
  });
  return room_bytes;
}

absl::Status DevicePromises::Check(int64_t size_bytes, bool charged_here,
                                   absl::string_view what) const {
  absl::Status status;
  ForEachMemory(charged_here, [&](const HostMemory& memory, int64_t promised_bytes) {
    status.Update(CheckHostRoom(memory, size_bytes, promised_bytes, what));
  });
  return status;
}

absl::Status DevicePromises::CheckDevice(int64_t size_bytes, bool charged_here) const {
  return Check(size_bytes, charged_here, "DEVICE, which is host memory here,");
}

absl::Status DevicePromises::CheckHost(int64_t size_bytes, absl::string_view what) const {
  for (const auto& [id, session] : sessions_.all()) {
    if (session->reclaiming()) return absl::OkStatus();
    for (const auto& [space, opened] : session->spaces) {
      if (opened.closing) return absl::OkStatus();
    }
  }
  return Check(size_bytes, /*charged_here=*/true, what);
}

}  // namespace gemini::server
