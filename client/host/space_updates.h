// SPDX-License-Identifier: Apache-2.0
// Coordinates the updates of one space's bundles: a step begins an update, the updater takes its
// bundles one by one, and whoever needs a new version waits for its commit. ChunkStore owns it.
// Thread: any.
// Late:   a gradient may still be on DEVICE when its update begins. Its write-back does not wait
//         for the commit; the commit waits for it.
// Device: Begin also commits versions that were made on DEVICE. They are stored nowhere else then,
//         and ChunkStore refuses to acquire their chunks until Replace has written each of them
//         back.
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

  // Waits until no I/O of the chunks of `on_device` and no copy from their HOST slots is in flight.
  // Then records the intent, commits `on_device` at its step, gives up the HOST and NVME copies of
  // `on_device`, and makes `bundles` await their commit at that step. The gradients of `bundles`
  // are complete: those of `late_gradients`, a subset, on DEVICE, and the others below. On an error
  // nothing has changed.
  // FAILED_PRECONDITION: bundles still await an earlier update, a bundle is not committed below the
  // step, its gradient is held, or an `on_device` chunk is held or is on DEVICE alone.
  // INVALID_ARGUMENT: a bundle is named twice or does not exist, a late one is not in `bundles`,
  // there is no such DEVICE slot or step, or the intent has another number of tensors than the
  // space. RESOURCE_EXHAUSTED: others hold the HOST slots that the update needs. Any code: an
  // earlier update failed with it.
  absl::Status Begin(const Intent& intent, absl::Span<const BundleId> bundles,
                     absl::Span<const DeviceVersion> on_device = {},
                     absl::Span<const BundleId> late_gradients = {});

  // Returns whether the bundle is pending and its late gradient has not arrived.
  bool AwaitsGradient(BundleId bundle) const;
  // Says that the late gradient has arrived: it is complete in HOST or NVME, and whoever writes to
  // it waits for the commit from then on. Does nothing if none is awaited.
  void GradientArrived(BundleId bundle);
  // Blocks until all late gradients have arrived, or an update fails.
  void AwaitLateGradients();

  // For the updater: returns the bundle to update next (PendingCommits), each once, or no value if
  // all are taken or an update has failed. If the bundle awaits its gradient, the updater has that
  // written back first, and holds no slot meanwhile.
  std::optional<BundleId> Take();
  // Makes `error`, unless an earlier one is set, the result of all waits for a pending bundle,
  // those in progress and later ones, until Retry.
  void Fail(absl::Status error);
  // Clears the error, and lets Take return what is pending once more.
  void Retry();

  // Block until no bundle is pending, or this one is not. Errors: that of the update that failed.
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
