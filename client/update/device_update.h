// SPDX-License-Identifier: Apache-2.0
// The part of an optimizer step that is done where the chunks are, on DEVICE: ranges whose
// parameter, moments and gradient lie there are updated in place; of others only the gradient does,
// is read for the norm, and leaves when the step is taken (SpaceUpdates::Begin, late_gradients).
// Order:  Add each range, AddLateGradient, read the gradients for their norm and chunks for trust
//         ratios, Update, and versions() into SpaceUpdates::Begin, which makes them the valid ones
//         together with the intent. Before Update the committed version is whole in HOST or NVME,
//         so when that call fails, Undo goes back to it.
// Thread: one. Pins from Add to the destructor; nobody else writes these ranges meanwhile.
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

  // Writes back what of the parameter, its master and the moments is dirty, and pins all ranges,
  // fetching what is not there. On an error the range is not part of the update. INVALID_ARGUMENT:
  // it is already; a server's plan may say so. Others: of Residency::Flush and Pin.
  absl::Status Add(const UpdateRanges& ranges);
  // Pins the range, fetching it if it is not there. INVALID_ARGUMENT: as Add. Others: of
  // Residency::Pin.
  absl::Status AddLateGradient(const GradientRange& range);
  bool updates(BundleId bundle) const;
  bool has_late_gradient(BundleId bundle) const;
  // The bytes of the bundle's gradient chunk; null: it was not added.
  const std::byte* gradient(BundleId bundle) const;
  // Where the chunks of a bundle lie that it updates.
  BundleInPlace chunks(BundleId bundle) const;

  // Has `update` bring each bundle to its next version, in place, by operators of the calling
  // thread, and shows each in the timeline. Blocks until they are over.
  void Update(absl::FunctionRef<void(const BundleInPlace&)> update);
  std::vector<DeviceVersion> versions() const;
  // Forgets what Update did: the copies on DEVICE go.
  void Undo() { undone_ = true; }

 private:
  struct Pinned {
    const ChunkStore* store = nullptr;
    BundleId first;
    int64_t num_bundles = 0;
    KindMap<RangeId> ids = {};  // None: not pinned.
    KindMap<std::byte*> addresses = {};
    bool updates = false;  // False: of all kinds only the gradient.
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
