// SPDX-License-Identifier: Apache-2.0
// The part of ChunkStore that follows a plan's foresight: what is read ahead from NVME, and what leaves HOST
// for it.
#include <optional>
#include <utility>

#include "client/chunk_store.h"
#include "gemini/spare_slots.h"

namespace gemini::client {

void ChunkStore::Foresee(policies::HostForesight foresight) {
  MutexLock lock(mutex_);
  spillable_.Foresee(std::move(foresight));
  idle_.notify_all();
}

void ChunkStore::TellUse(ChunkId chunk) {
  if (spillable_.foresight().empty()) return;
  spillable_.Used(chunk);
  idle_.notify_all();
}

std::optional<ChunkId> ChunkStore::NextToRead() {
  if (!MayHoldMore()) return std::nullopt;
  policies::HostForesight& foresight = spillable_.foresight();
  const std::optional<ChunkId> next =
      foresight.NextToRead([this](ChunkId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const StoredChunk& chunk = chunks_[id.value()];
        return chunk.nvme != kNoSlot && chunk.host == kNoSlot && !chunk.busy && chunk.loss.ok();
      });
  if (!next || free_host_.num_free() > kFreeSlots) return next;
  // Room is made by what is used later alone.
  const SlotId victim = spillable_.First();
  if (victim == kNoSlot) return std::nullopt;
  const ChunkId leaves = host_slots_[victim.value()].owner;
  return foresight.NextUse(leaves) > foresight.NextUse(*next) ? next : std::nullopt;
}

bool ChunkStore::ReadAhead() {
  MutexLock lock(mutex_);
  std::optional<ChunkId> next;
  while (!ahead_ended_ && !(next = NextToRead())) mutex_.WaitFor(idle_);
  if (ahead_ended_) return false;
  absl::Status status;
  if (free_host_.num_free() > kFreeSlots) {
    ++slots_coming_;  // When it is read it may be spilled.
    absl::StatusOr<HostChunk> read = AcquireLocked(*next, Access::kRead);
    --slots_coming_;
    status = read.status();
    if (read.ok()) {
      // Before anybody else looks: to others a chunk that is held is in use.
      DropHold(read->slot_, /*for_update=*/false);
      read->owner_ = nullptr;
    } else if (!chunks_[next->value()].loss.ok()) {
      status = absl::OkStatus();  // That one is lost; the others are still to be brought.
    }
  } else {
    status = Spill(spillable_.First());
  }
  if (!status.ok()) spillable_.Foresee({});
  idle_.notify_all();
  return true;
}

void ChunkStore::EndReadAhead() {
  MutexLock lock(mutex_);
  ahead_ended_ = true;
  idle_.notify_all();
}

}  // namespace gemini::client
