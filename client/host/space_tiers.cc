// SPDX-License-Identifier: Apache-2.0
#include "client/host/space_tiers.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

std::string Named(ChunkId id, absl::string_view space) {
  return absl::StrCat("chunk ", id.value(), " (", ChunkKindName(KindOf(id)), " of bundle ",
                      BundleOf(id).value(), ") of space ", space);
}

}  // namespace

SpaceTiers::SpaceTiers(std::string space, SpaceMemory mapped, UniqueFd kick,
                       const Connection& connection, uint64_t generation, SpaceTimeline of_space,
                       bool nvme_checksums)
    : name(std::move(space)),
      memory(std::move(mapped)),
      timeline(of_space),
      residency(memory.residency_words(), memory.layout().num_chunks),
      counters(memory.header()),
      places(memory, residency),
      ledger(&memory.header()->intent, memory.intents(), memory.shape()),
      ring_(memory, std::move(kick), connection, generation, nvme_checksums) {}

absl::StatusOr<SlotId> SpaceTiers::Bring(ChunkId id, ChunkAccess access) {
  const bool for_update = access == ChunkAccess::kUpdate;
  StoredChunk& chunk = places.at(id);
  if (chunk.host != kNoSlot) {
    places.host().Hold(chunk.host, for_update);
    return chunk.host;
  }
  if (chunk.device != kNoSlot) {
    return absl::FailedPreconditionError(absl::StrCat(
        Named(id, name), " was updated on DEVICE and lies there alone: write it back first"));
  }
  if (chunk.nvme == kNoSlot) {
    return absl::NotFoundError(
        absl::StrCat(Named(id, name), " is FREE: nothing was written to it"));
  }
  if (!chunk.loss.ok()) return chunk.loss;
  // Busy already while room is made: nobody reads it twice.
  chunk.busy = true;
  absl::StatusOr<SlotId> slot = TakeHostSlot(access);
  absl::Status status = slot.status();
  if (slot.ok()) status = Transfer(IoOperation::kRead, id, *slot, chunk.nvme);
  chunk.busy = false;
  idle.notify_all();
  if (!status.ok()) {
    // The server may still write to the slot of a transfer that never came back: it is lost.
    if (slot.ok() && !ring_.broken()) DropHold(*slot, for_update);
    const absl::Status failed(
        status.code(), absl::StrCat("bring ", Named(id, name), " into HOST: ", status.message()));
    // For good, even if another read would bring the right bytes. Else somebody was to be spilled.
    if (slot.ok() && absl::IsDataLoss(failed)) {
      chunk.loss = failed;
      counters.AddDamagedChunk(id);
    }
    return failed;
  }
  places.EnterHost(id, *slot);
  return slot;
}

absl::StatusOr<SlotId> SpaceTiers::TakeHostSlot(ChunkAccess access) {
  HostSlots& slots = places.host();
  const bool for_update = access == ChunkAccess::kUpdate;
  // Counted while room is made, too: that releases the lock, and more others may come, or an
  // update begin.
  const int64_t of_others = for_update ? 0 : 1;
  slots.AddOfOthers(of_others);
  absl::Status status;
  while (status.ok() && slots.free().num_free() == 0) {
    // Where states go home, what is on its way out makes the room: no parameter leaves for it.
    const bool room_comes = slots.coming() > 0 && memory.shape().states_on_nvme &&
                            slots.order().FirstGoingHome() == kNoSlot;
    if (const SlotId first = slots.order().First(); first != kNoSlot && !room_comes) {
      status = Spill(first);
      // NVME is full, and no write has failed: a copy from another slot may be the last that holds
      // it.
      if (absl::IsResourceExhausted(status) && places.free_nvme().num_free() == 0 &&
          slots.ending_holds() > 0) {
        mutex.WaitFor(idle);
        status = absl::OkStatus();
      }
    } else if (slots.coming() > 0 || slots.ending_holds() > 0) {
      mutex.WaitFor(idle);  // Another thread is about to free one, or to release one.
    } else {
      status = NoRoom();
    }
  }
  slots.AddOfOthers(-of_others);
  if (status.ok()) return *slots.Take(for_update);
  idle.notify_all();
  return status;
}

absl::Status SpaceTiers::Spill(SlotId victim) {
  HostSlots& slots = places.host();
  const ChunkId id = slots.at(victim).owner;
  StoredChunk& chunk = places.at(id);
  if (chunk.nvme == kNoSlot) {
    const std::optional<SlotId> nvme = places.TakeNvmeSlot();
    if (!nvme) return NoRoom();
    chunk.busy = true;
    slots.order().Remove(victim);
    slots.AddComing(1);
    const absl::Status status = Transfer(IoOperation::kWrite, id, victim, *nvme);
    slots.AddComing(-1);
    chunk.busy = false;
    slots.MaySpill(victim, GoesHome(id));
    idle.notify_all();
    readable.notify_all();
    if (!status.ok()) {
      counters.AddFailedNvmeWrite();
      // It may fail again: others first.
      if (!ring_.broken()) places.free_nvme().GiveToTakeLast(*nvme);
      return absl::Status(status.code(),
                          absl::StrCat("spill ", Named(id, name), ": ", status.message()));
    }
    chunk.nvme = *nvme;
  }
  // The record names the slot on NVME before the HOST slot can be reused.
  if (chunk.committed) places.Publish(id);
  places.DropHostCopy(id);
  places.Publish(id);
  slots.order().Left(id);
  return absl::OkStatus();
}

absl::Status SpaceTiers::Transfer(IoOperation operation, ChunkId chunk, SlotId host, SlotId nvme) {
  const bool reads = operation == IoOperation::kRead;
  const int64_t chunk_bytes = memory.shape().chunk_bytes;
  mutex.Unlock();
  const int64_t begin_ns = TimelineNowNs();
  absl::Status status = ring_.Transfer(operation, host, nvme);
  if (status.ok()) {
    timeline.Add(reads ? TimelineLane::kNvmeRead : TimelineLane::kNvmeWrite, chunk.value(),
                 begin_ns, chunk_bytes);
  }
  mutex.Lock();
  if (status.ok()) (reads ? moved_.nvme_read_bytes : moved_.nvme_written_bytes) += chunk_bytes;
  return status;
}

absl::Status SpaceTiers::NoRoom() const {
  const SlotPool& host = places.host().free();
  const SlotPool& nvme = places.free_nvme();
  const int64_t chunk_bytes = memory.shape().chunk_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      "space ", name, " needs a HOST slot of ", FormatByteSize(chunk_bytes), ": all ",
      host.num_slots(), " (", FormatByteSize(host.num_slots() * chunk_bytes), ") are taken, ",
      places.host().CountHeld(), " of them held, and ", nvme.num_used(), " of ", nvme.num_slots(),
      " NVME slots: raise --host-memory or --nvme"));
}

absl::StatusOr<HostChunk> SpaceTiers::Handle(absl::StatusOr<SlotId> held, ChunkAccess access) {
  if (!held.ok()) return held.status();
  return HostChunk(*this, *held, memory.slot_address(*held), access == ChunkAccess::kUpdate);
}

void SpaceTiers::DropHold(SlotId id, bool for_update) {
  HostSlots& slots = places.host();
  slots.Drop(id, for_update);
  const HostSlot& slot = slots.at(id);
  const bool is_pending = ledger.pending().count() > 0;
  if (for_update) {
    if (slot.update_holds == 0 && ledger.LeaveLateSlot(slot.owner)) idle.notify_all();
  } else if (slot.holds == slot.update_holds && is_pending) {
    idle.notify_all();
  }
  if (slot.holds > 0) return;
  if (slot.owner != ChunkId()) {
    const bool goes_home = GoesHome(slot.owner);
    slots.MaySpill(id, goes_home);
    if (goes_home) going_home.notify_one();
  }
  if (is_pending || !slots.order().foresight().empty()) readable.notify_all();
}

void SpaceTiers::Release(SlotId slot, bool for_update, bool ends_by_itself) {
  MutexLock lock(mutex);
  DropHold(slot, for_update);
  if (!ends_by_itself) return;
  places.host().AddEndingHold(slot, -1);
  idle.notify_all();
}

void SpaceTiers::CountEnding(SlotId slot) {
  MutexLock lock(mutex);
  places.host().AddEndingHold(slot, 1);
}

bool SpaceTiers::GoesHome(ChunkId chunk) const {
  return memory.shape().states_on_nvme && IsOptimizerState(KindOf(chunk)) &&
         places.at(chunk).committed && !ledger.pending().awaits(BundleOf(chunk));
}

void SpaceTiers::LetStatesGoHome(BundleId bundle) {
  HostSlots& slots = places.host();
  for (const ChunkKind kind : UpdatedKinds(memory.shape().format)) {
    const ChunkId id = ChunkOf(bundle, kind);
    const StoredChunk& chunk = places.at(id);
    if (!GoesHome(id) || chunk.host == kNoSlot || chunk.busy) continue;
    if (slots.at(chunk.host).holds > 0) continue;  // Goes when nobody holds it.
    slots.order().Remove(chunk.host);
    slots.MaySpill(chunk.host, /*goes_home=*/true);
    going_home.notify_one();
  }
}

StoredBytes SpaceTiers::bytes() const {
  StoredBytes bytes = moved_;
  bytes.host_bytes = places.host().free().num_used() * memory.shape().chunk_bytes;
  bytes.nvme_bytes = places.free_nvme().num_used() * memory.shape().chunk_bytes;
  return bytes;
}

}  // namespace gemini::client
