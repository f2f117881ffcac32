// SPDX-License-Identifier: Apache-2.0
#include "server/leases/device_grant.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "gemini/layout.h"
#include "gemini/system/check.h"
#include "server/tiers/sealed_memfd.h"

namespace gemini::server {

int64_t DeviceGrainBytes(const TierStore& device) {
  return device.slab_bytes() > 0 ? device.slab_bytes() : kPageBytes;
}

absl::StatusOr<TierGrant> MakeDeviceGrant(TierStore& device, int64_t arena_bytes) {
  const int64_t grain_bytes = DeviceGrainBytes(device);
  return device.Make(grain_bytes, device.slab_bytes() > 0 ? 0 : arena_bytes / grain_bytes);
}

MadeSlabs MakeSlabs(TierStore& device, int64_t count) {
  MadeSlabs made;
  for (int64_t i = 0; i < count; ++i) {
    absl::StatusOr<TierGrant> one = device.Make(device.slab_bytes(), 1);
    if (!one.ok()) {
      made.status = one.status();
      break;
    }
    made.slabs.push_back(std::move(one->extents.front()));
  }
  return made;
}

std::function<void()> CutDeviceGrant(TierStore& device, TierGrant& grant, int64_t keep_bytes) {
  if (device.slab_bytes() == 0) {
    return [fd = grant.extents[0].fd.get(), keep_bytes, end = grant.size_bytes()] {
      PunchHole(fd, keep_bytes, end - keep_bytes);
    };
  }
  GEMINI_CHECK(keep_bytes % device.slab_bytes() == 0);
  const auto first =
      grant.extents.begin() + std::min(keep_bytes, grant.size_bytes()) / device.slab_bytes();
  // A std::function can be copied, a grant cannot.
  auto rest = std::make_shared<TierGrant>();
  rest->slot_bytes = grant.slot_bytes;
  rest->slots_per_extent = grant.slots_per_extent;
  rest->extents.assign(std::make_move_iterator(first),
                       std::make_move_iterator(grant.extents.end()));
  grant.extents.erase(first, grant.extents.end());
  return [&device, rest] { device.Destroy(std::move(*rest)); };
}

}  // namespace gemini::server
