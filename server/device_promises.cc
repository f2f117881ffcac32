// SPDX-License-Identifier: Apache-2.0
#include "server/device_promises.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/status/statusor.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/host_memory.h"

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

absl::Status DevicePromises::CheckLease(int64_t size_bytes, bool charged_here) const {
  return Check(size_bytes, charged_here, "DEVICE, which is host memory here,");
}

absl::Status DevicePromises::CheckHost(int64_t size_bytes, absl::string_view what) const {
  return Check(size_bytes, /*charged_here=*/true, what);
}

absl::Status DevicePromises::Check(int64_t size_bytes, bool charged_here,
                                   absl::string_view what) const {
  if (device_.slab_bytes() > 0) return absl::OkStatus();
  int64_t promised_bytes = 0, promised_here_bytes = 0;
  for (const auto& [id, session] : sessions_.all()) {
    const int64_t bytes = PromisedBytes(*session);
    promised_bytes += bytes;
    if (bytes > 0 && session->lease->charged_here) promised_here_bytes += bytes;
  }
  const absl::StatusOr<HostMemory> machine = ReadMachineMemory();
  if (!machine.ok()) return absl::OkStatus();
  GEMINI_RETURN_IF_ERROR(CheckHostRoom(*machine, size_bytes, promised_bytes, what));
  if (!charged_here) return absl::OkStatus();
  const absl::StatusOr<HostMemory> tightest = ReadHostMemory();
  if (!tightest.ok()) return absl::OkStatus();
  return CheckHostRoom(*tightest, size_bytes, promised_here_bytes, what);
}

}  // namespace gemini::server
