// SPDX-License-Identifier: Apache-2.0
#include "client/host/chunk_store.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/state_format.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

std::string Named(ChunkId id, absl::string_view space) {
  return absl::StrCat("chunk ", id.value(), " (", ChunkKindName(KindOf(id)), " of bundle ",
                      BundleOf(id).value(), ") of space ", space);
}

}  // namespace

ChunkStore::ChunkStore(std::string name, SpaceMemory memory, UniqueFd kick,
                       const Connection& connection, uint64_t generation, SpaceTimeline timeline,
                       bool nvme_checksums)
    : name_(std::move(name)),
      memory_(std::move(memory)),
      ring_(memory_, std::move(kick), connection, generation, nvme_checksums),
      residency_(memory_.residency_words(), memory_.layout().num_chunks),
      counters_(memory_.header()),
      timeline_(timeline),
      commits_(memory_.commit_words(), memory_.records(), memory_.shape().num_bundles,
               memory_.layout().num_records),
      intents_(&memory_.header()->intent, memory_.intents(), memory_.shape().num_tensors,
               memory_.shape().num_bundles),
      pending_(memory_.shape().num_bundles),
      chunks_(memory_.layout().num_chunks),
      host_slots_(memory_.shape().host_slots),
      free_host_(memory_.shape().host_slots),
      free_nvme_(memory_.shape().nvme_slots),
      spillable_(memory_.shape().host_slots) {}

absl::Status ChunkStore::CheckId(ChunkId chunk) const {
  if (chunk.value() >= 0 && chunk.value() < memory_.layout().num_chunks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("space ", name_, " has no chunk ", chunk.value(),
                                                 "; it has ", memory_.layout().num_chunks));
}

absl::StatusOr<HostChunk> ChunkStore::Acquire(ChunkId chunk, bool foreseen) {
  GEMINI_RETURN_IF_ERROR(CheckId(chunk));
  MutexLock lock(mutex_);
  GEMINI_RETURN_IF_ERROR(AwaitAccess(chunk, Access::kRead));
  if (foreseen) TellUse(chunk);
  return AcquireLocked(chunk, Access::kRead);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireForUpdate(ChunkId chunk) {
  GEMINI_RETURN_IF_ERROR(CheckId(chunk));
  MutexLock lock(mutex_);
  GEMINI_RETURN_IF_ERROR(AwaitAccess(chunk, Access::kUpdate));
  TellUse(chunk);
  return AcquireLocked(chunk, Access::kUpdate);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireLocked(ChunkId id, Access access) {
  StoredChunk& chunk = chunks_[id.value()];
  if (chunk.host != kNoSlot) return Hold(chunk.host, access);
  if (chunk.device != kNoSlot) {
    return absl::FailedPreconditionError(absl::StrCat(
        Named(id, name_), " was updated on DEVICE and lies there alone: write it back first"));
  }
  if (chunk.nvme == kNoSlot) {
    return absl::NotFoundError(
        absl::StrCat(Named(id, name_), " is FREE: nothing was written to it"));
  }
  if (!chunk.loss.ok()) return chunk.loss;
  // Busy already while room is made: nobody reads it twice.
  chunk.busy = true;
  absl::StatusOr<SlotId> slot = TakeHostSlot(access);
  absl::Status status = slot.status();
  if (slot.ok()) {
    const SlotId nvme = chunk.nvme;
    mutex_.Unlock();
    const int64_t begin_ns = TimelineNowNs();
    status = ring_.Transfer(IoOperation::kRead, *slot, nvme);
    if (status.ok()) {
      timeline_.Add(TimelineLane::kNvmeRead, id.value(), begin_ns, chunk_bytes());
    }
    mutex_.Lock();
  }
  chunk.busy = false;
  idle_.notify_all();
  if (!status.ok()) {
    // The server may still write to the slot of a transfer that never came back: it is lost.
    if (slot.ok() && !ring_.broken()) DropHold(*slot, access == Access::kUpdate);
    const absl::Status failed(
        status.code(), absl::StrCat("bring ", Named(id, name_), " into HOST: ", status.message()));
    // For good, even if another read would bring the right bytes. Else somebody was to be spilled.
    if (slot.ok() && absl::IsDataLoss(failed)) {
      chunk.loss = failed;
      counters_.AddDamagedChunk(id);
    }
    return failed;
  }
  moved_.nvme_read_bytes += chunk_bytes();
  chunk.host = *slot;
  host_slots_[slot->value()].owner = id;
  // Its bytes may be written from now on, and the copy on NVME would be stale.
  if (!chunk.committed) DropNvmeCopy(id);
  PublishPlace(id);
  return HostChunk(this, *slot, memory_.slot_address(*slot), access == Access::kUpdate);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireUncommitted(ChunkId id) {
  return AcquireToWrite(id, Access::kWrite, /*keep_bytes=*/true);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireToOverwrite(ChunkId id) {
  return AcquireToWrite(id, Access::kWrite, /*keep_bytes=*/false);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireForWriteBack(ChunkId id) {
  return AcquireToWrite(id, Access::kWriteBack, /*keep_bytes=*/false);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireToWrite(ChunkId id, Access access, bool keep_bytes) {
  GEMINI_RETURN_IF_ERROR(CheckId(id));
  MutexLock lock(mutex_);
  GEMINI_RETURN_IF_ERROR(AwaitAccess(id, access));
  StoredChunk& chunk = chunks_[id.value()];
  if (chunk.committed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "chunk ", id.value(), " of space ", name_, " is committed and changes out of place only"));
  }
  ++chunk.writes.all;
  if (access == Access::kWriteBack) ++chunk.writes.from_device;
  TellUse(id);
  // A late gradient, which may be held all the same.
  if (!MayHoldMore()) {
    access = Access::kUpdate;
    in_late_slot_ = id;
  }
  if (chunk.host != kNoSlot || (chunk.nvme != kNoSlot && keep_bytes)) {
    return AcquireLocked(id, access);
  }
  chunk.busy = true;
  absl::StatusOr<SlotId> slot = TakeHostSlot(access);
  if (slot.ok() && keep_bytes) {
    mutex_.Unlock();
    std::memset(memory_.slot_address(*slot), 0, chunk_bytes());
    mutex_.Lock();
  }
  chunk.busy = false;
  idle_.notify_all();
  if (!slot.ok()) {
    if (access == Access::kUpdate) in_late_slot_ = ChunkId();
    return slot.status();
  }
  DropNvmeCopy(id);
  chunk.host = *slot;
  host_slots_[slot->value()].owner = id;
  PublishPlace(id);
  return HostChunk(this, *slot, memory_.slot_address(*slot), access == Access::kUpdate);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireSpare() {
  MutexLock lock(mutex_);
  while (!MayTakeSpare()) mutex_.WaitFor(idle_);
  GEMINI_ASSIGN_OR_RETURN(const SlotId slot, TakeHostSlot(Access::kWrite));
  return HostChunk(this, slot, memory_.slot_address(slot), /*for_update=*/false);
}

absl::StatusOr<HostChunk> ChunkStore::AcquireSpareForUpdate() {
  MutexLock lock(mutex_);
  GEMINI_ASSIGN_OR_RETURN(const SlotId slot, TakeHostSlot(Access::kUpdate));
  return HostChunk(this, slot, memory_.slot_address(slot), /*for_update=*/true);
}

absl::Status ChunkStore::Commit(BundleId bundle, int64_t step,
                                absl::Span<std::pair<ChunkKind, HostChunk>> fresh) {
  GEMINI_RETURN_IF_ERROR(CheckId(ChunkOf(bundle, ChunkKind::kParam)));
  MutexLock lock(mutex_);
  // Waiting for one lets go of the lock, and another may become busy meanwhile.
  const auto busy = [this, bundle](const std::pair<ChunkKind, HostChunk>& entry)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                          return chunks_[ChunkOf(bundle, entry.first).value()].busy;
                        };
  while (std::any_of(fresh.begin(), fresh.end(), busy)) mutex_.WaitFor(idle_);
  return CommitLocked(bundle, step, fresh);
}

absl::Status ChunkStore::Replace(ChunkId chunk, HostChunk fresh) {
  GEMINI_RETURN_IF_ERROR(CheckId(chunk));
  std::pair<ChunkKind, HostChunk> entry(KindOf(chunk), std::move(fresh));
  MutexLock lock(mutex_);
  while (chunks_[chunk.value()].busy) mutex_.WaitFor(idle_);
  if (!chunks_[chunk.value()].committed) {
    return absl::FailedPreconditionError(absl::StrCat("chunk ", chunk.value(), " of space ", name_,
                                                      " is not committed: nothing to replace"));
  }
  TellUse(chunk);
  return CommitLocked(BundleOf(chunk), commits_.step(BundleOf(chunk)), absl::MakeSpan(&entry, 1));
}

absl::Status ChunkStore::CommitLocked(BundleId bundle, int64_t step,
                                      absl::Span<std::pair<ChunkKind, HostChunk>> fresh) {
  if (step < commits_.step(bundle) || step < 0 || step >= int64_t{1} << kCommitStepBits) {
    return absl::InvalidArgumentError(absl::StrCat("bundle ", bundle.value(), " of space ", name_,
                                                   " is at step ", commits_.step(bundle),
                                                   " and cannot be committed at ", step));
  }
  CommitRecord record = commits_.record(bundle);
  uint32_t kinds_seen = 0;
  for (const auto& [kind, handle] : fresh) {
    const ChunkId id = ChunkOf(bundle, kind);
    const uint32_t bit = 1u << static_cast<int>(kind);
    if (kind == ChunkKind::kGrad || (kinds_seen & bit) != 0 || handle.owner_ != this) {
      return absl::InvalidArgumentError(
          absl::StrCat("a commit of bundle ", bundle.value(), " of space ", name_, " names a ",
                       ChunkKindName(kind), " chunk that is a gradient, named twice, or not here"));
    }
    const HostSlot& slot = host_slots_[handle.slot_.value()];
    const bool spare = slot.owner == ChunkId() && slot.holds == 1;
    if (!spare && !(slot.owner == id && !chunks_[id.value()].committed)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a commit of bundle ", bundle.value(), " of space ", name_, " names HOST slot ",
          handle.slot_.value(), ", which is chunk ", slot.owner.value(), "'s"));
    }
    kinds_seen |= bit;
    record[static_cast<int>(kind)] = PackChunkSlot({.tier = Tier::kHost, .slot = handle.slot_});
  }
  commits_.Commit(bundle, step, record);
  // The word names the fresh slots: the old ones may go.
  for (auto& [kind, handle] : fresh) {
    const ChunkId id = ChunkOf(bundle, kind);
    StoredChunk& chunk = chunks_[id.value()];
    if (chunk.host != handle.slot_) {
      DropHostCopy(id);
      chunk.host = handle.slot_;
      host_slots_[handle.slot_.value()].owner = id;
    }
    DropNvmeCopy(id);
    chunk.device = kNoSlot;
    chunk.committed = true;
    residency_.SetBelow(id, ChunkSlot{.tier = Tier::kHost, .slot = chunk.host});
    DropHold(handle.slot_, handle.for_update_);
    handle.owner_ = nullptr;
    handle.data_ = nullptr;
  }
  if (pending_.awaits(bundle) && step >= intent_step_) {
    pending_.Done(bundle);
    counters_.SetUpdatePending(pending_.count());
    LetStatesGoHome(bundle);
    idle_.notify_all();
    moves_.readable.notify_all();
  }
  return absl::OkStatus();
}

int64_t ChunkStore::CommittedStep(BundleId bundle) const {
  MutexLock lock(mutex_);
  return commits_.step(bundle);
}

bool ChunkStore::IsCommitted(ChunkId chunk) const {
  MutexLock lock(mutex_);
  return chunks_[chunk.value()].committed;
}

std::optional<ChunkSlot> ChunkStore::CommittedPlace(ChunkId id) const {
  const SpaceShape& shape = memory_.shape();
  const TierMap<int64_t> slots = {{shape.device_slots, shape.host_slots, shape.nvme_slots}};
  MutexLock lock(mutex_);
  const CommitRecord& record = commits_.record(BundleOf(id));
  const absl::StatusOr<ChunkSlot> place =
      UnpackChunkSlot(record[static_cast<int>(KindOf(id))], slots);
  if (!place.ok()) return std::nullopt;
  return *place;
}

bool ChunkStore::HasPayload(ChunkId id) const {
  MutexLock lock(mutex_);
  const StoredChunk& chunk = chunks_[id.value()];
  return chunk.host != kNoSlot || chunk.nvme != kNoSlot || chunk.device != kNoSlot;
}

void ChunkStore::Free(ChunkId id) {
  MutexLock lock(mutex_);
  while (IsFetchedFrom(id)) mutex_.WaitFor(idle_);
  if (!AwaitAccess(id, Access::kWrite).ok()) return;
  StoredChunk& chunk = chunks_[id.value()];
  ++chunk.writes.all;
  GEMINI_CHECK(!chunk.committed);
  GEMINI_CHECK(chunk.host == kNoSlot || host_slots_[chunk.host.value()].holds == 0);
  DropHostCopy(id);
  DropNvmeCopy(id);
  PublishPlace(id);
}

absl::StatusOr<SlotId> ChunkStore::TakeHostSlot(Access access) {
  // Counted while room is made, too: that lets go of the lock, and more others may come, or an
  // update begin.
  const int64_t of_others = access == Access::kUpdate ? 0 : 1;
  slots_of_others_ += of_others;
  absl::Status status;
  while (status.ok()) {
    if (const std::optional<SlotId> slot = free_host_.Take(); slot) {
      slots_of_others_ -= of_others;
      host_slots_[slot->value()] = {};
      CountHold(*slot, access);
      return *slot;
    }
    // Where states go home, what is on its way out makes the room: no parameter leaves for it.
    const bool room_comes = slots_coming_ > 0 && memory_.shape().states_on_nvme &&
                            spillable_.FirstGoingHome() == kNoSlot;
    if (const SlotId first = spillable_.First(); first != kNoSlot && !room_comes) {
      status = Spill(first);
      // NVME is full, and no write has failed: a copy from another slot may be the last that holds
      // it.
      if (absl::IsResourceExhausted(status) && free_nvme_.num_free() == 0 && ending_holds_ > 0) {
        mutex_.WaitFor(idle_);
        status = absl::OkStatus();
      }
    } else if (slots_coming_ > 0 || ending_holds_ > 0) {
      mutex_.WaitFor(idle_);  // Another thread is about to free one, or to let go of one.
    } else {
      status = NoRoom();
    }
  }
  slots_of_others_ -= of_others;
  idle_.notify_all();
  return status;
}

absl::Status ChunkStore::Spill(SlotId victim) {
  const ChunkId id = host_slots_[victim.value()].owner;
  StoredChunk& chunk = chunks_[id.value()];
  if (chunk.nvme == kNoSlot) {
    GEMINI_ASSIGN_OR_RETURN(const SlotId nvme, TakeNvmeSlot());
    chunk.busy = true;
    spillable_.Remove(victim);
    ++slots_coming_;
    mutex_.Unlock();
    const int64_t begin_ns = TimelineNowNs();
    const absl::Status status = ring_.Transfer(IoOperation::kWrite, victim, nvme);
    if (status.ok()) {
      timeline_.Add(TimelineLane::kNvmeWrite, id.value(), begin_ns, chunk_bytes());
    }
    mutex_.Lock();
    --slots_coming_;
    chunk.busy = false;
    spillable_.Add(victim, id, GoesHome(id));
    idle_.notify_all();
    moves_.readable.notify_all();
    if (!status.ok()) {
      counters().AddFailedNvmeWrite();
      // It may fail again: others first.
      if (!ring_.broken()) free_nvme_.GiveToTakeLast(nvme);
      return absl::Status(status.code(),
                          absl::StrCat("spill ", Named(id, name_), ": ", status.message()));
    }
    moved_.nvme_written_bytes += chunk_bytes();
    chunk.nvme = nvme;
  }
  // The record names the slot on NVME before the HOST slot can be reused.
  if (chunk.committed) PublishPlace(id);
  DropHostCopy(id);
  PublishPlace(id);
  spillable_.Left(id);
  return absl::OkStatus();
}

absl::StatusOr<SlotId> ChunkStore::TakeNvmeSlot() {
  if (const std::optional<SlotId> slot = free_nvme_.Take(); slot) return *slot;
  // A chunk that is in HOST too can do without its NVME slot: its only copy is then the one in
  // HOST.
  for (const HostSlot& slot : host_slots_) {
    if (slot.owner == ChunkId()) continue;
    StoredChunk& chunk = chunks_[slot.owner.value()];
    if (chunk.busy || chunk.nvme == kNoSlot) continue;
    const SlotId freed = std::exchange(chunk.nvme, kNoSlot);
    PublishPlace(slot.owner);  // The record names the HOST slot before the NVME slot is reused.
    return freed;
  }
  return NoRoom();
}

absl::Status ChunkStore::NoRoom() const {
  const int64_t held = std::count_if(host_slots_.begin(), host_slots_.end(),
                                     [](const HostSlot& slot) { return slot.holds > 0; });
  return absl::ResourceExhaustedError(absl::StrCat(
      "space ", name_, " needs a HOST slot of ", FormatByteSize(chunk_bytes()), ": all ",
      free_host_.num_slots(), " (", FormatByteSize(free_host_.num_slots() * chunk_bytes()),
      ") are taken, ", held, " of them held, and ", free_nvme_.num_used(), " of ",
      free_nvme_.num_slots(), " NVME slots: raise --host-memory or --nvme"));
}

HostChunk ChunkStore::Hold(SlotId slot, Access access) {
  if (host_slots_[slot.value()].holds == 0) spillable_.Remove(slot);
  CountHold(slot, access);
  return HostChunk(this, slot, memory_.slot_address(slot), access == Access::kUpdate);
}

void ChunkStore::CountHold(SlotId id, Access access) {
  HostSlot& slot = host_slots_[id.value()];
  ++slot.holds;
  if (access == Access::kUpdate) {
    ++slot.update_holds;
  } else if (slot.holds - slot.update_holds == 1) {
    ++slots_of_others_;
  }
}

void ChunkStore::DropHold(SlotId id, bool for_update) {
  HostSlot& slot = host_slots_[id.value()];
  GEMINI_CHECK(slot.holds > 0);
  --slot.holds;
  if (for_update) {
    if (--slot.update_holds == 0 && slot.owner != ChunkId() && slot.owner == in_late_slot_) {
      in_late_slot_ = ChunkId();
      idle_.notify_all();
    }
  } else if (slot.holds == slot.update_holds) {
    --slots_of_others_;
    if (pending_.count() > 0) idle_.notify_all();
  }
  if (slot.holds > 0) return;
  if (slot.owner == ChunkId()) {
    free_host_.Give(id);
  } else {
    const bool goes_home = GoesHome(slot.owner);
    spillable_.Add(id, slot.owner, goes_home);
    if (goes_home) moves_.going_home.notify_one();
  }
  if (pending_.count() > 0 || !spillable_.foresight().empty()) moves_.readable.notify_all();
}

void ChunkStore::Release(SlotId slot, bool for_update, bool ends_by_itself) {
  MutexLock lock(mutex_);
  DropHold(slot, for_update);
  if (!ends_by_itself) return;
  --host_slots_[slot.value()].ending_holds;
  --ending_holds_;
  idle_.notify_all();
}

void ChunkStore::CountEnding(SlotId slot) {
  MutexLock lock(mutex_);
  ++host_slots_[slot.value()].ending_holds;
  ++ending_holds_;
}

bool ChunkStore::IsFetchedFrom(ChunkId id) const {
  const SlotId slot = chunks_[id.value()].host;
  return slot != kNoSlot && host_slots_[slot.value()].ending_holds > 0;
}

void ChunkStore::DropHostCopy(ChunkId id) {
  const SlotId slot = std::exchange(chunks_[id.value()].host, kNoSlot);
  if (slot == kNoSlot) return;
  host_slots_[slot.value()].owner = ChunkId();
  if (host_slots_[slot.value()].holds > 0) return;  // Free when the last holder lets go.
  spillable_.Remove(slot);
  free_host_.Give(slot);
}

void ChunkStore::DropNvmeCopy(ChunkId id) {
  const SlotId slot = std::exchange(chunks_[id.value()].nvme, kNoSlot);
  chunks_[id.value()].loss = absl::OkStatus();
  if (slot != kNoSlot) free_nvme_.Give(slot);
}

void ChunkStore::PublishPlace(ChunkId id) {
  const StoredChunk& chunk = chunks_[id.value()];
  const ChunkSlot in_host = {.tier = Tier::kHost, .slot = chunk.host};
  const ChunkSlot on_nvme = {.tier = Tier::kNvme, .slot = chunk.nvme};
  if (chunk.host == kNoSlot && chunk.nvme == kNoSlot) {
    residency_.SetBelow(id, std::nullopt);
  } else {
    residency_.SetBelow(id, chunk.host != kNoSlot ? in_host : on_nvme);
  }
  if (!chunk.committed) return;
  GEMINI_CHECK(chunk.device == kNoSlot);  // It has no copy below that could move.
  const BundleId bundle = BundleOf(id);
  CommitRecord record = commits_.record(bundle);
  uint64_t& place = record[static_cast<int>(KindOf(id))];
  const uint64_t now = PackChunkSlot(chunk.nvme != kNoSlot ? on_nvme : in_host);
  if (place == now) return;
  place = now;
  commits_.Commit(bundle, commits_.step(bundle), record);
}

void ChunkStore::Foresee(policies::HostForesight foresight) {
  if (memory_.shape().states_on_nvme) return;
  MutexLock lock(mutex_);
  spillable_.Foresee(std::move(foresight));
  moves_.readable.notify_all();
}

void ChunkStore::TellUse(ChunkId chunk) {
  if (spillable_.foresight().empty()) return;
  spillable_.Used(chunk);
  moves_.readable.notify_all();
}

bool ChunkStore::GoesHome(ChunkId chunk) const {
  return memory_.shape().states_on_nvme && IsOptimizerState(KindOf(chunk)) &&
         chunks_[chunk.value()].committed && !pending_.awaits(BundleOf(chunk));
}

void ChunkStore::LetStatesGoHome(BundleId bundle) {
  for (const ChunkKind kind : UpdatedKinds(format())) {
    const ChunkId id = ChunkOf(bundle, kind);
    const StoredChunk& chunk = chunks_[id.value()];
    if (!GoesHome(id) || chunk.host == kNoSlot || chunk.busy) continue;
    if (host_slots_[chunk.host.value()].holds > 0) continue;  // Goes when nobody holds it.
    spillable_.Remove(chunk.host);
    spillable_.Add(chunk.host, id, /*goes_home=*/true);
    moves_.going_home.notify_one();
  }
}

StoredBytes ChunkStore::stored_bytes() const {
  MutexLock lock(mutex_);
  StoredBytes bytes = moved_;
  bytes.host_bytes = free_host_.num_used() * chunk_bytes();
  bytes.nvme_bytes = free_nvme_.num_used() * chunk_bytes();
  return bytes;
}

}  // namespace gemini::client
