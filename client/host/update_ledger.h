// SPDX-License-Identifier: Apache-2.0
// The update under way of one space: its intent, the bundles that are pending until their new
// version is committed, what each access waits for meanwhile, and what failed.
// Thread: none of its own; the caller locks.
// Slots:  while bundles are pending, UpdateSlots HOST slots are kept for the updater, and
//         kLateGradientSlots for gradients that are written back after the intent. Others wait for
//         more. So the updater waits for I/O and for holds that end by themselves alone, and who
//         waits for it may hold slots: no deadlock.
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

  // Returns whether an update of `space` with this intent may begin, as far as the ledger knows.
  absl::Status CheckIntent(absl::string_view space, const Intent& intent) const;
  // Records the intent and makes `bundles` pending, some of them with late gradients.
  void Begin(const Intent& intent, absl::Span<const BundleId> bundles,
             absl::Span<const BundleId> late_gradients);
  // Says that the bundle is committed at `step`. True: it was pending, and no longer is.
  bool Committed(BundleId bundle, int64_t step);
  PendingCommits& pending() { return pending_; }
  const PendingCommits& pending() const { return pending_; }
  // The bundle to update next; nothing if all are taken, or after a failure.
  std::optional<BundleId> Take();

  // After a failure nothing is given out, nobody waits, and who would have waited gets the status.
  void Fail(absl::Status error);
  // Forgets the failures and gives out again what is pending.
  void Retry();
  const absl::Status& failure() const { return failure_; }
  // A failed read ahead, or write behind, ends them until the next update begins, or Retry.
  bool read_failed() const { return read_failed_; }
  void SetReadFailed() { read_failed_ = true; }
  bool write_failed() const { return write_failed_; }
  void SetWriteFailed() { write_failed_ = true; }

  // Whether the access waits for the commit of the chunk's bundle.
  bool Delays(ChunkId chunk, ChunkAccess access) const;
  // Whether the access writes back a gradient that the pending update awaits.
  bool IsLate(ChunkId chunk, ChunkAccess access) const;
  // Whether others than the updater, who hold `of_others` slots, may hold one more.
  bool MayHoldMore(int64_t of_others) const;
  bool IsUnderWay() const { return pending_.count() > 0 && failure_.ok(); }
  // The slots that are kept for an update, and those that are left to others.
  int64_t SlotsForUpdate(bool any_late) const;
  int64_t SlotsForOthers(bool any_late) const;

  // The gradient in the slot that is kept for late ones; none if that is not in use.
  ChunkId in_late_slot() const { return in_late_slot_; }
  void EnterLateSlot(ChunkId gradient) { in_late_slot_ = gradient; }
  // Says that no update holds `owner` any more. True: it was in that slot.
  bool LeaveLateSlot(ChunkId owner);

 private:
  const StateFormat format_;
  const int64_t host_slots_;
  IntentWriter intents_;
  PendingCommits pending_;
  int64_t step_ = 0;  // Of the intent.
  absl::Status failure_;
  bool read_failed_ = false;
  bool write_failed_ = false;
  ChunkId in_late_slot_;
};

}  // namespace gemini::client
