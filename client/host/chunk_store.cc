// SPDX-License-Identifier: Apache-2.0
#include "client/host/chunk_store.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/state_format.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

ChunkStore::ChunkStore(std::string name, SpaceMemory memory, UniqueFd kick,
                       const Connection& connection, uint64_t generation, SpaceTimeline timeline,
                       bool nvme_checksums)
    : tiers_(std::move(name), std::move(memory), std::move(kick), connection, generation, timeline,
             nvme_checksums),
      updates_(tiers_) {}

absl::Status ChunkStore::CheckId(ChunkId chunk) const {
  const int64_t num_chunks = memory().layout().num_chunks;
  if (chunk.value() >= 0 && chunk.value() < num_chunks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("space ", name(), " has no chunk ", chunk.value(), "; it has ", num_chunks));
}

absl::Status ChunkStore::AwaitAccess(ChunkId chunk, ChunkAccess access) {
  UpdateLedger& ledger = tiers_.ledger;
  for (;;) {
    if (tiers_.places.at(chunk).busy) {
      tiers_.mutex.WaitFor(tiers_.idle);
    } else if (ledger.Delays(chunk, access)) {
      if (!ledger.failure().ok()) return ledger.failure();
      ledger.pending().Hurry(BundleOf(chunk));
      tiers_.readable.notify_all();
      tiers_.mutex.WaitFor(tiers_.idle);
    } else if (access == ChunkAccess::kUpdate ||
               ledger.MayHoldMore(tiers_.places.host().of_others()) ||
               (ledger.IsLate(chunk, access) && ledger.in_late_slot() == ChunkId())) {
      return absl::OkStatus();
    } else {
      tiers_.mutex.WaitFor(tiers_.idle);
    }
  }
}

void ChunkStore::TellUse(ChunkId chunk) {
  SpillOrder& order = tiers_.places.host().order();
  if (order.foresight().empty()) return;
  order.Used(chunk);
  tiers_.readable.notify_all();
}

absl::StatusOr<HostChunk> ChunkStore::Acquire(ChunkId chunk, bool foreseen) {
  return AcquireToRead(chunk, ChunkAccess::kRead, foreseen);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireForUpdate(ChunkId chunk) {
  return AcquireToRead(chunk, ChunkAccess::kUpdate, /*foreseen=*/true);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireToRead(ChunkId chunk, ChunkAccess access,
                                                    bool foreseen) {
  GEMINI_RETURN_IF_ERROR(CheckId(chunk));
  MutexLock lock(tiers_.mutex);
  GEMINI_RETURN_IF_ERROR(AwaitAccess(chunk, access));
  if (foreseen) TellUse(chunk);
  return tiers_.Handle(tiers_.Bring(chunk, access), access);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireUncommitted(ChunkId id) {
  return AcquireToWrite(id, ChunkAccess::kWrite, /*keep_bytes=*/true);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireToOverwrite(ChunkId id) {
  return AcquireToWrite(id, ChunkAccess::kWrite, /*keep_bytes=*/false);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireForWriteBack(ChunkId id) {
  return AcquireToWrite(id, ChunkAccess::kWriteBack, /*keep_bytes=*/false);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireToWrite(ChunkId id, ChunkAccess access,
                                                     bool keep_bytes) {
  GEMINI_RETURN_IF_ERROR(CheckId(id));
  MutexLock lock(tiers_.mutex);
  GEMINI_RETURN_IF_ERROR(AwaitAccess(id, access));
  StoredChunk& chunk = tiers_.places.at(id);
  if (chunk.committed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "chunk ", id.value(), " of space ", name(), " is committed and changes out of place only"));
  }
  ++chunk.writes.all;
  if (access == ChunkAccess::kWriteBack) ++chunk.writes.from_device;
  TellUse(id);
  // A late gradient, which may be held all the same.
  if (!tiers_.ledger.MayHoldMore(tiers_.places.host().of_others())) {
    access = ChunkAccess::kUpdate;
    tiers_.ledger.EnterLateSlot(id);
  }
  if (chunk.host != kNoSlot || (chunk.nvme != kNoSlot && keep_bytes)) {
    return tiers_.Handle(tiers_.Bring(id, access), access);
  }
  chunk.busy = true;
  absl::StatusOr<SlotId> slot = tiers_.TakeHostSlot(access);
  if (slot.ok() && keep_bytes) {
    tiers_.mutex.Unlock();
    std::memset(memory().slot_address(*slot), 0, chunk_bytes());
    tiers_.mutex.Lock();
  }
  chunk.busy = false;
  tiers_.idle.notify_all();
  if (!slot.ok()) {
    if (access == ChunkAccess::kUpdate) tiers_.ledger.LeaveLateSlot(id);
    return slot.status();
  }
  tiers_.places.EnterHost(id, *slot);
  return tiers_.Handle(*slot, access);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireSpare() {
  MutexLock lock(tiers_.mutex);
  const HostSlots& slots = tiers_.places.host();
  // Each spare is a copy beyond those that HOST and NVME have slots for: too many, and the
  // updater's new chunks could not push others to NVME.
  const auto may_take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex) {
    return !tiers_.ledger.IsUnderWay() || (tiers_.ledger.MayHoldMore(slots.of_others()) &&
                                           slots.CountSparesOfOthers() < kSlotsBesideUpdate);
  };
  while (!may_take()) tiers_.mutex.WaitFor(tiers_.idle);
  return tiers_.Handle(tiers_.TakeHostSlot(ChunkAccess::kWrite), ChunkAccess::kWrite);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireSpareForUpdate() {
  MutexLock lock(tiers_.mutex);
  return tiers_.Handle(tiers_.TakeHostSlot(ChunkAccess::kUpdate), ChunkAccess::kUpdate);
}

absl::Status ChunkStore::Commit(BundleId bundle, int64_t step,
                                absl::Span<std::pair<ChunkKind, HostChunk>> fresh) {
  GEMINI_RETURN_IF_ERROR(CheckId(ChunkOf(bundle, ChunkKind::kParam)));
  MutexLock lock(tiers_.mutex);
  // Waiting for one releases the lock, and another may become busy meanwhile.
  const auto busy = [this, bundle](const std::pair<ChunkKind, HostChunk>& entry)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex) {
                          return tiers_.places.at(ChunkOf(bundle, entry.first)).busy;
                        };
  while (std::any_of(fresh.begin(), fresh.end(), busy)) tiers_.mutex.WaitFor(tiers_.idle);
  return CommitLocked(bundle, step, fresh);
}

absl::Status ChunkStore::Replace(ChunkId chunk, HostChunk fresh) {
  GEMINI_RETURN_IF_ERROR(CheckId(chunk));
  std::pair<ChunkKind, HostChunk> entry(KindOf(chunk), std::move(fresh));
  MutexLock lock(tiers_.mutex);
  while (tiers_.places.at(chunk).busy) tiers_.mutex.WaitFor(tiers_.idle);
  if (!tiers_.places.at(chunk).committed) {
    return absl::FailedPreconditionError(absl::StrCat("chunk ", chunk.value(), " of space ", name(),
                                                      " is not committed: nothing to replace"));
  }
  TellUse(chunk);
  return CommitLocked(BundleOf(chunk), tiers_.places.commits().step(BundleOf(chunk)),
                      absl::MakeSpan(&entry, 1));
}

absl::Status ChunkStore::CommitLocked(BundleId bundle, int64_t step,
                                      absl::Span<std::pair<ChunkKind, HostChunk>> fresh) {
  ChunkPlaces& places = tiers_.places;
  CommitWriter& commits = places.commits();
  if (step < commits.step(bundle) || step < 0 || step >= int64_t{1} << kCommitStepBits) {
    return absl::InvalidArgumentError(absl::StrCat("bundle ", bundle.value(), " of space ", name(),
                                                   " is at step ", commits.step(bundle),
                                                   " and cannot be committed at ", step));
  }
  CommitRecord record = commits.record(bundle);
  uint32_t kinds_seen = 0;
  for (const auto& [kind, handle] : fresh) {
    const ChunkId id = ChunkOf(bundle, kind);
    const uint32_t bit = 1u << static_cast<int>(kind);
    if (kind == ChunkKind::kGrad || (kinds_seen & bit) != 0 || !handle.IsOf(tiers_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a commit of bundle ", bundle.value(), " of space ", name(), " names a ",
                       ChunkKindName(kind), " chunk that is a gradient, named twice, or not here"));
    }
    const HostSlot& slot = places.host().at(handle.slot());
    const bool spare = slot.owner == ChunkId() && slot.holds == 1;
    if (!spare && !(slot.owner == id && !places.at(id).committed)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a commit of bundle ", bundle.value(), " of space ", name(), " names HOST slot ",
          handle.slot().value(), ", which is chunk ", slot.owner.value(), "'s"));
    }
    kinds_seen |= bit;
    record[static_cast<int>(kind)] = PackChunkSlot({.tier = Tier::kHost, .slot = handle.slot()});
  }
  commits.Commit(bundle, step, record);
  // The word names the fresh slots: the old ones may go.
  for (auto& [kind, handle] : fresh) {
    places.CommitInHost(ChunkOf(bundle, kind), handle.slot());
    tiers_.DropHold(handle.slot(), handle.for_update());
    handle.Detach();
  }
  if (tiers_.ledger.Committed(bundle, step)) {
    tiers_.counters.SetUpdatePending(tiers_.ledger.pending().count());
    tiers_.LetStatesGoHome(bundle);
    tiers_.idle.notify_all();
    tiers_.readable.notify_all();
  }
  return absl::OkStatus();
}

void ChunkStore::Free(ChunkId id) {
  MutexLock lock(tiers_.mutex);
  ChunkPlaces& places = tiers_.places;
  while (places.IsFetchedFrom(id)) tiers_.mutex.WaitFor(tiers_.idle);
  if (!AwaitAccess(id, ChunkAccess::kWrite).ok()) return;
  StoredChunk& chunk = places.at(id);
  ++chunk.writes.all;
  GEMINI_CHECK(!chunk.committed);
  GEMINI_CHECK(chunk.host == kNoSlot || places.host().at(chunk.host).holds == 0);
  places.DropHostCopy(id);
  places.DropNvmeCopy(id);
  places.Publish(id);
}

int64_t ChunkStore::CommittedStep(BundleId bundle) const {
  MutexLock lock(tiers_.mutex);
  return tiers_.places.commits().step(bundle);
}

bool ChunkStore::IsCommitted(ChunkId chunk) const {
  MutexLock lock(tiers_.mutex);
  return tiers_.places.at(chunk).committed;
}

std::optional<ChunkSlot> ChunkStore::CommittedPlace(ChunkId id) const {
  const SpaceShape& shape = memory().shape();
  const TierMap<int64_t> slots = {{shape.device_slots, shape.host_slots, shape.nvme_slots}};
  MutexLock lock(tiers_.mutex);
  const CommitRecord& record = tiers_.places.commits().record(BundleOf(id));
  const absl::StatusOr<ChunkSlot> place =
      UnpackChunkSlot(record[static_cast<int>(KindOf(id))], slots);
  if (!place.ok()) return std::nullopt;
  return *place;
}

bool ChunkStore::HasPayload(ChunkId id) const {
  MutexLock lock(tiers_.mutex);
  const StoredChunk& chunk = tiers_.places.at(id);
  return chunk.host != kNoSlot || chunk.nvme != kNoSlot || chunk.device != kNoSlot;
}

bool ChunkStore::AwaitsCommit(ChunkId chunk) const {
  MutexLock lock(tiers_.mutex);
  return tiers_.ledger.Delays(chunk, ChunkAccess::kRead);
}

ChunkWrites ChunkStore::WriteCounts(ChunkId chunk) const {
  MutexLock lock(tiers_.mutex);
  return tiers_.places.at(chunk).writes;
}

std::optional<int64_t> ChunkStore::PeekGradient(BundleId bundle,
                                                absl::FunctionRef<void(const std::byte*)> look) {
  const ChunkId id = ChunkOf(bundle, ChunkKind::kGrad);
  MutexLock lock(tiers_.mutex);
  StoredChunk& chunk = tiers_.places.at(id);
  while (chunk.busy) tiers_.mutex.WaitFor(tiers_.idle);
  HostSlots& slots = tiers_.places.host();
  if (chunk.host == kNoSlot || slots.at(chunk.host).holds > 0) return std::nullopt;
  const SlotId slot = chunk.host;
  slots.Hold(slot, /*for_update=*/true);
  chunk.busy = true;
  const int64_t writes = chunk.writes.all;
  tiers_.mutex.Unlock();
  look(memory().slot_address(slot));
  tiers_.mutex.Lock();
  chunk.busy = false;
  tiers_.DropHold(slot, /*for_update=*/true);
  tiers_.idle.notify_all();
  return writes;
}

void ChunkStore::Foresee(policies::HostForesight foresight) {
  if (memory().shape().states_on_nvme) return;
  MutexLock lock(tiers_.mutex);
  tiers_.places.host().order().Foresee(std::move(foresight));
  tiers_.readable.notify_all();
}

StoredBytes ChunkStore::stored_bytes() const {
  MutexLock lock(tiers_.mutex);
  return tiers_.bytes();
}

}  // namespace gemini::client
