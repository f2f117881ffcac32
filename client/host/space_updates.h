// SPDX-License-Identifier: Apache-2.0
// The updates of one space's bundles: a step begins one, the updater takes its bundles, and whoever
// needs a new version waits for its commit. `ChunkStore::updates` gives it.
// Thread: any.
// Late:   a gradient may be on DEVICE still when its update begins. Its write-back does not wait
//         for the commit, which waits for it.
// Device: Begin also commits versions that were made on DEVICE. They are nowhere else then, and who
//         asks for their bytes is refused until Replace has brought them back, chunk by chunk.
#pragma once
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/host/space_tiers.h"
#include "client/host/stored_chunk.h"
#include "gemini/ids.h"
#include "gemini/shm/intent_shm.h"

namespace gemini::client {

class SpaceUpdates {
 public:
  explicit SpaceUpdates(SpaceTiers& tiers) : tiers_(tiers) {}  // `tiers` outlives this.

  // Records the intent, which commits `on_device` at its step and makes `bundles` await their
  // commit at it; then gives up the HOST and NVME copies of `on_device`, when their I/O is done and
  // no copy from there under way. Gradients are complete: of `late_gradients`, some of `bundles`,
  // on DEVICE, else below. On an error nothing has changed.
  // FAILED_PRECONDITION: a bundle still awaits an earlier one, is not below the step, its gradient
  // is held; or an `on_device` chunk is, or is on DEVICE alone. INVALID_ARGUMENT: a bundle twice, a
  // late one not in `bundles`, no such slot, other tensors than the space's. RESOURCE_EXHAUSTED:
  // others hold its HOST slots.
  absl::Status Begin(const Intent& intent, absl::Span<const BundleId> bundles,
                     absl::Span<const DeviceVersion> on_device = {},
                     absl::Span<const BundleId> late_gradients = {});

  // Returns whether the bundle is pending and its late gradient has not arrived.
  bool AwaitsGradient(BundleId bundle) const;
  // Says that it has arrived: it is complete in HOST or NVME, and who writes to it waits for the
  // commit from then on. No-op if none is awaited.
  void GradientArrived(BundleId bundle);
  // Blocks until all late gradients have arrived, or an update fails.
  void AwaitLateGradients();

  // For the updater: returns the bundle to update next (PendingCommits), each once; nothing when
  // all are taken. If the bundle awaits its gradient, that comes first, with nothing held.
  std::optional<BundleId> Take();
  // Gives `error` to all who wait for a pending bundle now or later, until Retry.
  void Fail(absl::Status error);
  // Lets what is pending be taken once more.
  void Retry();

  // Blocks until no bundle is pending, or this one is not. Errors: the update that failed.
  absl::Status AwaitCommits();
  absl::Status AwaitCommit(BundleId bundle);

 private:
  bool IsSettled(absl::Span<const BundleId> bundles, absl::Span<const DeviceVersion> on_device,
                 bool any_late) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  absl::Status CheckInHost(absl::Span<const BundleId> bundles, int64_t step, bool any_late) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);
  absl::Status CheckOnDevice(const DeviceVersion& version, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex);

  SpaceTiers& tiers_;
};

}  // namespace gemini::client
