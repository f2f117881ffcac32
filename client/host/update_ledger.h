// SPDX-License-Identifier: Apache-2.0
// Keeps the state of a space's update in progress: its intent, the bundles that are pending until
// their new version is committed, what each access waits for meanwhile, and what failed.
// Thread: none of its own; the caller locks.
// Slots:  while bundles are pending, UpdateSlots HOST slots are kept for the updater, and
//         kLateGradientSlots for gradients that are written back after the intent. Others wait if
//         they need one of these. So the updater waits only for I/O and for holds that end without
//         help (HostChunk::EndsByItself), and whoever waits for the updater may hold slots: there
//         is no deadlock.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/host/intent_writer.h"
#include "client/host/pending_commits.h"
#include "client/host/space_memory.h"
#include "client/host/stored_chunk.h"
#include "gemini/ids.h"

namespace gemini::client {

class UpdateLedger {
 public:
  // Starts with no update pending. `word` and `intents` are as for IntentWriter.
  UpdateLedger(std::atomic<uint64_t>* word, IntentShm* intents, const SpaceShape& shape);

  // Checks that an update of `space` with this intent may begin, as far as the ledger knows.
  // Errors: as SpaceUpdates::Begin.
  absl::Status CheckIntent(absl::string_view space, const Intent& intent) const;
  // Records the intent and makes `bundles` pending, some of them with late gradients.
  void Begin(const Intent& intent, absl::Span<const BundleId> bundles,
             absl::Span<const BundleId> late_gradients);
  // Says that the bundle is committed at `step`. Returns whether it was pending and no longer is.
  bool Committed(BundleId bundle, int64_t step);
  PendingCommits& pending() { return pending_; }
  const PendingCommits& pending() const { return pending_; }
  // Returns the bundle to update next, or no value if all are taken or after a failure.
  std::optional<BundleId> Take();

  // Records that an update failed. From then on Take returns no value, nobody waits, and whoever
  // would have waited gets the error. The first error stays.
  void Fail(absl::Status error);
  // Clears the failures, and lets Take return the pending bundles again.
  void Retry();
  const absl::Status& failure() const { return failure_; }
  // Whether reading ahead, or writing behind, has failed. Each ends with its first failure, until
  // the next update begins or Retry is called.
  bool read_failed() const { return read_failed_; }
  void SetReadFailed() { read_failed_ = true; }
  bool write_failed() const { return write_failed_; }
  void SetWriteFailed() { write_failed_ = true; }

  // Returns whether the access waits for the commit of the chunk's bundle.
  bool Delays(ChunkId chunk, ChunkAccess access) const;
  // Returns whether the access writes back a gradient that the pending update awaits.
  bool IsLate(ChunkId chunk, ChunkAccess access) const;
  // Returns whether others than the updater, who hold `of_others` slots, may hold one more.
  bool MayHoldMore(int64_t of_others) const;
  bool IsUnderWay() const { return pending_.count() > 0 && failure_.ok(); }
  // Return how many slots are kept for an update, and how many are left to others.
  int64_t SlotsForUpdate(bool any_late) const;
  int64_t SlotsForOthers(bool any_late) const;

  // Returns the gradient in the slot that is reserved for late ones, or no chunk if it is not in
  // use.
  ChunkId in_late_slot() const { return in_late_slot_; }
  void EnterLateSlot(ChunkId gradient) { in_late_slot_ = gradient; }
  // Says that no hold for an update of `owner` is left. Returns whether it was in that slot.
  bool LeaveLateSlot(ChunkId owner);

 private:
  const StateFormat format_;
  const int64_t host_slots_;
  IntentWriter intents_;
  PendingCommits pending_;
  int64_t step_ = 0;  // The intent's.
  absl::Status failure_;
  bool read_failed_ = false;
  bool write_failed_ = false;
  ChunkId in_late_slot_;
};

}  // namespace gemini::client
