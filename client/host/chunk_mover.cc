// SPDX-License-Identifier: Apache-2.0
#include "client/host/chunk_mover.h"

#include "gemini/plan/spare_slots.h"
#include "gemini/state_format.h"

namespace gemini::client {

bool ChunkMover::IsMissing(ChunkId id) const {
  const StoredChunk& chunk = store_.chunks_[id.value()];
  return chunk.nvme != kNoSlot && chunk.host == kNoSlot && !chunk.busy && chunk.loss.ok();
}

// Free slots are left for the new chunks of the update that was taken. What is read for those
// behind it leaves room for a whole update, too: somebody may wait for one that was to come later.
std::optional<ChunkId> ChunkMover::NextForUpdate() const {
  const StateFormat& format = store_.format();
  const int64_t num_free = store_.free_host_.num_free();
  // A plan foresees updates, too, and would give up what is read here for what it holds to be more
  // urgent.
  if (!store_.spillable_.foresight().empty()) return std::nullopt;
  if (store_.moves_.read_failed || !store_.update_failure_.ok() ||
      num_free <= UpdatedKinds(format).size()) {
    return std::nullopt;
  }
  std::optional<ChunkId> next;
  // No more than the window has room for, and few enough to look at each time.
  int64_t bundles = num_free > UpdateSlots(format) ? kStateBundlesInHost : 1;
  store_.pending_.LookAhead([&](BundleId bundle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_) {
    for (const ChunkKind kind : TrainableKinds(format)) {
      const ChunkId id = ChunkOf(bundle, kind);
      const bool comes_late = kind == ChunkKind::kGrad && store_.pending_.awaits_gradient(bundle);
      if (comes_late || !IsMissing(id)) continue;
      next = id;
      return false;
    }
    return --bundles > 0;
  });
  return next;
}

std::optional<ChunkId> ChunkMover::NextForeseen() {
  if (!store_.MayHoldMore()) return std::nullopt;
  policies::HostForesight& foresight = store_.spillable_.foresight();
  const std::optional<ChunkId> next = foresight.NextToRead(
      [this](ChunkId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_) { return IsMissing(id); });
  if (!next || store_.free_host_.num_free() > kFreeSlots) return next;
  // Room is made by what is used later alone.
  const SlotId victim = store_.spillable_.First();
  if (victim == kNoSlot) return std::nullopt;
  const ChunkId leaves = store_.host_slots_[victim.value()].owner;
  return foresight.NextUse(leaves) > foresight.NextUse(*next) ? next : std::nullopt;
}

absl::Status ChunkMover::Read(ChunkId chunk, ChunkStore::Access access) {
  ++store_.slots_coming_;  // When it is read it may be spilled.
  absl::StatusOr<HostChunk> read = store_.AcquireLocked(chunk, access);
  --store_.slots_coming_;
  if (!read.ok()) {
    return store_.chunks_[chunk.value()].loss.ok() ? read.status() : absl::OkStatus();
  }
  // Before anybody else looks: to others a chunk that is held is in use.
  store_.DropHold(read->slot_, read->for_update_);
  read->owner_ = nullptr;
  return absl::OkStatus();
}

void ChunkMover::TellMoved() {
  store_.idle_.notify_all();
  store_.moves_.readable.notify_all();
}

bool ChunkMover::ReadForeseen() {
  MutexLock lock(store_.mutex_);
  std::optional<ChunkId> next;
  while (!ended_ && !(next = NextForeseen())) store_.mutex_.WaitFor(store_.moves_.readable);
  if (ended_) return false;
  const absl::Status status = store_.free_host_.num_free() > kFreeSlots
                                  ? Read(*next, ChunkStore::Access::kRead)
                                  : store_.Spill(store_.spillable_.First());
  if (!status.ok()) store_.spillable_.Foresee({});
  TellMoved();
  return true;
}

bool ChunkMover::ReadForUpdate() {
  MutexLock lock(store_.mutex_);
  std::optional<ChunkId> next;
  while (!ended_ && !(next = NextForUpdate())) store_.mutex_.WaitFor(store_.moves_.readable);
  if (ended_) return false;
  store_.moves_.read_failed |= !Read(*next, ChunkStore::Access::kUpdate).ok();
  TellMoved();
  return true;
}

bool ChunkMover::WriteBehind() {
  MutexLock lock(store_.mutex_);
  while (!ended_ && (store_.moves_.write_failed || store_.spillable_.FirstGoingHome() == kNoSlot)) {
    store_.mutex_.WaitFor(store_.moves_.going_home);
  }
  if (ended_) return false;
  store_.moves_.write_failed |= !store_.Spill(store_.spillable_.FirstGoingHome()).ok();
  TellMoved();
  return true;
}

void ChunkMover::End() {
  MutexLock lock(store_.mutex_);
  ended_ = true;
  store_.moves_.readable.notify_all();
  store_.moves_.going_home.notify_all();
}

}  // namespace gemini::client
