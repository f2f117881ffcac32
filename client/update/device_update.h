// SPDX-License-Identifier: Apache-2.0
// Runs the part of an optimizer step that is done on DEVICE, where the chunks are. Ranges whose
// parameter, moments and gradient are all on DEVICE are updated in place. Of other ranges only the
// gradient is there: it is read for the norm, and written back once the step is taken
// (SpaceUpdates::Begin, late_gradients).
// Order: Add each range, AddLateGradient, read the gradients for their norm and chunks for trust
// ratios, and Update. Then pass versions() to SpaceUpdates::Begin, which makes them the valid
// ones together with the intent. Until that call the committed version is whole in HOST or NVME, so
// if the call fails, Undo restores it.
// Thread: one. The ranges are pinned from Add to the destructor, and no other thread may write to
// them meanwhile.
#pragma once
#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/device/kept_for_update.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "client/update/bundle_update.h"
#include "gemini/ids.h"

namespace gemini::client {

class DeviceUpdate {
 public:
  // `residency` outlives this.
  explicit DeviceUpdate(Residency& residency) : residency_(residency) {}
  DeviceUpdate(const DeviceUpdate&) = delete;
  DeviceUpdate& operator=(const DeviceUpdate&) = delete;
  ~DeviceUpdate();

  // Writes back those of the parameter, its master and the moments that are dirty, and pins all
  // ranges, fetching those that are not on DEVICE. On an error the range is not part of the update.
  // INVALID_ARGUMENT: it is part of the update already, which a server's plan may cause. Others: of
  // Residency::Flush and Pin.
  absl::Status Add(const UpdateRanges& ranges);
  // Pins the range, fetching it if it is not on DEVICE. INVALID_ARGUMENT: as Add. Others: of
  // Residency::Pin.
  absl::Status AddLateGradient(const GradientRange& range);
  bool updates(BundleId bundle) const;
  bool has_late_gradient(BundleId bundle) const;
  // Returns the bytes of the bundle's gradient chunk, or null if it was not added.
  const std::byte* gradient(BundleId bundle) const;
  // Returns the addresses of the chunks of a bundle that it updates.
  BundleInPlace chunks(BundleId bundle) const;

  // Calls `update` for each bundle, to bring it to its next version in place by operators of the
  // calling thread, and shows each in the timeline. Blocks until they are over.
  void Update(absl::FunctionRef<void(const BundleInPlace&)> update);
  std::vector<DeviceVersion> versions() const;
  // Discards what Update did: the copies on DEVICE are dropped.
  void Undo() { undone_ = true; }

 private:
  struct Pinned {
    const ChunkStore* store = nullptr;
    BundleId first;
    int64_t num_bundles = 0;
    KindMap<RangeId> ids = {};  // None if not pinned.
    KindMap<std::byte*> addresses = {};
    bool updates = false;  // If false, only the gradient is pinned.
  };
  absl::Status CheckNew(BundleId first) const;
  void Insert(const Pinned& pinned);
  const Pinned* Find(BundleId bundle) const;
  std::byte* Address(const Pinned& pinned, ChunkKind kind, int64_t index) const {
    return pinned.addresses[kind] + index * residency_.chunk_bytes();
  }
  BundleInPlace ChunksOf(const Pinned& pinned, int64_t index) const;

  Residency& residency_;
  std::vector<Pinned> pinned_;  // By `first`, ascending; they do not overlap.
  bool updated_ = false;
  bool undone_ = false;
};

}  // namespace gemini::client
