// SPDX-License-Identifier: Apache-2.0
#include "server/device_promises.h"

#include <sys/stat.h>

#include <algorithm>

namespace gemini::server {
namespace {

// 0 while there is none.
int64_t BytesWithPages(const TierGrant& arena) {
  int64_t bytes = 0;
  for (const TierExtent& extent : arena.extents) {
    struct stat info;
    if (::fstat(extent.fd.get(), &info) == 0) bytes += info.st_blocks * 512;  // A unit of stat(2).
  }
  return bytes;
}

}  // namespace

int64_t PromisedHostBytes(const Sessions& sessions, const TierStore& device) {
  if (device.slab_bytes() != 0) return 0;
  int64_t promised = 0;
  for (const auto& [id, session] : sessions.all()) {
    if (!session->lease.has_value() || session->reclaiming()) continue;
    const Lease& lease = *session->lease;
    promised +=
        std::max<int64_t>(0, lease.terms.granted[Tier::kDevice] - BytesWithPages(lease.arena));
  }
  return promised;
}

}  // namespace gemini::server
