// SPDX-License-Identifier: Apache-2.0
#include "client/host/chunk_mover.h"

#include <pthread.h>

#include "gemini/plan/spare_slots.h"
#include "gemini/state_format.h"

namespace gemini::client {

ChunkMover::~ChunkMover() {
  End();
  for (std::thread& thread : threads_) thread.join();
}

void ChunkMover::StartForPlan() { Start(kReadersAhead, "gemini-ahead", &ChunkMover::ReadForeseen); }

void ChunkMover::StartForUpdates() {
  Start(4, "gemini-ahead", &ChunkMover::ReadForUpdate);
  Start(4, "gemini-behind", &ChunkMover::WriteBehind);
}

void ChunkMover::Start(int threads, const char* name, bool (ChunkMover::*step)()) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, step] {
      while ((this->*step)()) {
      }
    });
    ::pthread_setname_np(threads_.back().native_handle(), name);
  }
}

bool ChunkMover::IsMissing(ChunkId id) const {
  const StoredChunk& chunk = tiers_.places.at(id);
  return chunk.nvme != kNoSlot && chunk.host == kNoSlot && !chunk.busy && chunk.loss.ok();
}

// Free slots are left for the new chunks of the update that was taken. What is read for those
// behind it leaves room for a whole update, too: somebody may wait for one that was to come later.
std::optional<ChunkId> ChunkMover::NextForUpdate() const {
  const StateFormat& format = tiers_.memory.shape().format;
  const int64_t num_free = tiers_.places.host().free().num_free();
  UpdateLedger& ledger = tiers_.ledger;
  // A plan foresees updates, too, and would give up what is read here for what it holds to be more
  // urgent.
  if (!tiers_.places.host().order().foresight().empty()) return std::nullopt;
  if (ledger.read_failed() || !ledger.failure().ok() || num_free <= UpdatedKinds(format).size()) {
    return std::nullopt;
  }
  std::optional<ChunkId> next;
  // No more than the window has room for, and few enough to look at each time.
  int64_t bundles = num_free > UpdateSlots(format) ? kStateBundlesInHost : 1;
  ledger.pending().LookAhead([&](BundleId bundle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex) {
    for (const ChunkKind kind : TrainableKinds(format)) {
      const ChunkId id = ChunkOf(bundle, kind);
      const bool comes_late = kind == ChunkKind::kGrad && ledger.pending().awaits_gradient(bundle);
      if (comes_late || !IsMissing(id)) continue;
      next = id;
      return false;
    }
    return --bundles > 0;
  });
  return next;
}

std::optional<ChunkId> ChunkMover::NextForeseen() {
  HostSlots& slots = tiers_.places.host();
  if (!tiers_.ledger.MayHoldMore(slots.of_others())) return std::nullopt;
  policies::HostForesight& foresight = slots.order().foresight();
  const std::optional<ChunkId> next = foresight.NextToRead(
      [this](ChunkId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tiers_.mutex) { return IsMissing(id); });
  if (!next || slots.free().num_free() > kFreeSlots) return next;
  // Room is made by what is used later alone.
  const SlotId victim = slots.order().First();
  if (victim == kNoSlot) return std::nullopt;
  const ChunkId leaves = slots.at(victim).owner;
  return foresight.NextUse(leaves) > foresight.NextUse(*next) ? next : std::nullopt;
}

absl::Status ChunkMover::Read(ChunkId chunk, ChunkAccess access) {
  tiers_.places.host().AddComing(1);  // When it is read it may be spilled.
  const absl::StatusOr<SlotId> slot = tiers_.Bring(chunk, access);
  tiers_.places.host().AddComing(-1);
  if (!slot.ok()) return tiers_.places.at(chunk).loss.ok() ? slot.status() : absl::OkStatus();
  // Before anybody else looks: to others a chunk that is held is in use.
  tiers_.DropHold(*slot, access == ChunkAccess::kUpdate);
  return absl::OkStatus();
}

void ChunkMover::TellMoved() {
  tiers_.idle.notify_all();
  tiers_.readable.notify_all();
}

bool ChunkMover::ReadForeseen() {
  MutexLock lock(tiers_.mutex);
  std::optional<ChunkId> next;
  while (!ended_ && !(next = NextForeseen())) tiers_.mutex.WaitFor(tiers_.readable);
  if (ended_) return false;
  HostSlots& slots = tiers_.places.host();
  const absl::Status status = slots.free().num_free() > kFreeSlots
                                  ? Read(*next, ChunkAccess::kRead)
                                  : tiers_.Spill(slots.order().First());
  if (!status.ok()) slots.order().Foresee({});
  TellMoved();
  return true;
}

bool ChunkMover::ReadForUpdate() {
  MutexLock lock(tiers_.mutex);
  std::optional<ChunkId> next;
  while (!ended_ && !(next = NextForUpdate())) tiers_.mutex.WaitFor(tiers_.readable);
  if (ended_) return false;
  if (!Read(*next, ChunkAccess::kUpdate).ok()) tiers_.ledger.SetReadFailed();
  TellMoved();
  return true;
}

bool ChunkMover::WriteBehind() {
  MutexLock lock(tiers_.mutex);
  SpillOrder& order = tiers_.places.host().order();
  while (!ended_ && (tiers_.ledger.write_failed() || order.FirstGoingHome() == kNoSlot)) {
    tiers_.mutex.WaitFor(tiers_.going_home);
  }
  if (ended_) return false;
  if (!tiers_.Spill(order.FirstGoingHome()).ok()) tiers_.ledger.SetWriteFailed();
  TellMoved();
  return true;
}

void ChunkMover::End() {
  MutexLock lock(tiers_.mutex);
  ended_ = true;
  tiers_.readable.notify_all();
  tiers_.going_home.notify_all();
}

}  // namespace gemini::client
