// SPDX-License-Identifier: Apache-2.0
// The part of Residency that moves ranges for a plan: called from the threads of PlanExecutor, and
// never holding the lock while a copy or I/O runs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/device/residency.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

void Residency::set_planned_moves(PlannedMoves* moves) {
  MutexLock lock(mutex_);
  while (moving_ > 0) WaitForChange();  // The updater may bring a gradient.
  planned_ = moves;
}

absl::StatusOr<RangeId> Residency::FindRange(const ChunkStore& store, BundleId first,
                                             int64_t num_bundles, ChunkKind kind) const {
  MutexLock lock(mutex_);
  const auto found = range_of_chunk_.find({&store, ChunkOf(first, kind)});
  if (found != range_of_chunk_.end()) {
    const Range& range = ranges_[found->second];
    if (range.first == first && range.num_bundles == num_bundles) return RangeId(found->second);
  }
  return absl::NotFoundError(absl::StrCat("space ", store.name(), " has no ", ChunkKindName(kind),
                                          " range of ", num_bundles, " bundles from ",
                                          first.value()));
}

RangeChunks Residency::Describe(RangeId id) const {
  MutexLock lock(mutex_);
  const Range& range = ranges_[id.value()];
  return {range.store, range.first, range.num_bundles, range.kind};
}

bool Residency::IsOccupied(const RangePlacement& fetch) const {
  const Range& range = ranges_[fetch.range];
  return range.presence != Presence::kAbsent || !slots_.IsFree(fetch.slot, range.num_bundles);
}

absl::Status Residency::Vacate(absl::Span<std::pair<RangeId, SlotId>> keep) {
  std::vector<RangeId> victims;
  {
    MutexLock lock(mutex_);
    while (moving_ > 0) WaitForChange();
    std::vector<bool> kept(ranges_.size());
    for (auto& [id, slot] : keep) {
      kept[id.value()] = ranges_[id.value()].slot == slot;
      if (!kept[id.value()]) slot = kNoSlot;
    }
    for (size_t id = 0; id < ranges_.size(); ++id) {
      if (ranges_[id].slot == kNoSlot || kept[id]) continue;
      GEMINI_RETURN_IF_ERROR(CheckUnpinned(ranges_[id]));
      victims.push_back(RangeId(static_cast<int64_t>(id)));
    }
  }
  for (const RangeId victim : victims) {
    GEMINI_RETURN_IF_ERROR(EvictPlanned(victim, /*stays=*/false));
  }
  return absl::OkStatus();
}

FetchStart Residency::BeginFetch(RangeId id, SlotId slot, bool blank) {
  MutexLock lock(mutex_);
  const RangePlacement fetch = {.range = id.value(), .slot = slot};
  Range& range = ranges_[id.value()];
  bool charged = false;
  for (; planned_->active(); WaitForChange()) {
    if (!planned_->paused() && !IsOccupied(fetch) && range.host_writers == 0) {
      charged = budget_.TryCharge(DeviceBudget::Use::kChunks, BytesOf(range));
      if (charged) break;
      if (!planned_->IsEvicting()) {
        waiting_fetch_.reset();
        return FetchStart::kNoBudget;
      }
    }
    waiting_fetch_ = fetch;
    NotifyChange();  // An operator that waits for this must see that it has to wait.
  }
  waiting_fetch_.reset();
  // The plan may have ended since: what is charged is brought in all the same.
  if (!charged) return FetchStart::kEnded;
  slots_.Take(slot, range.num_bundles, id.value());
  range.slot = slot;
  range.discarded = false;
  if (blank) {
    range.presence = Presence::kReserved;
    evictable_.Add(id.value());
    NotifyChange();
  } else {
    range.presence = Presence::kIncoming;
    ++moving_;
  }
  return FetchStart::kStarted;
}

CopyEvent Residency::FetchChunk(RangeId id, int64_t index, const std::byte* host) {
  RangeChunks what;
  CopyEvent after;
  std::byte* to = nullptr;
  {
    MutexLock lock(mutex_);
    const Range& range = ranges_[id.value()];
    what = range;
    after = FetchableAfter(range, range.slot, index);
    to = AddressOf(range.slot) + range.offset_bytes(index);
    if (host != nullptr) stats_.fetch_bytes += range.payload_bytes;
  }
  // Incoming, it stays where it is. From memory that is not registered yet, CUDA may copy before it
  // returns.
  if (host == nullptr) {
    return copies_.Copy(CopyStream::kFetch, to, nullptr, what.payload_bytes, after);
  }
  what.store->counters().AddFetchBytes(what.payload_bytes);
  return copies_.Copy(CopyStream::kFetch, to, host, what.payload_bytes, after,
                      what.store->timeline().CopyOf(what.chunk(index)));
}

void Residency::EndFetch(RangeId id, CopyEvent last, bool all) {
  // The next owner of the slots must not find a copy in flight.
  if (!all) copies_.Wait(last);
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  if (all && !range.discarded) {
    range.presence = Presence::kSettling;
    range.settled = last;
    Enter(id.value(), range.slot);
  } else {
    range.settled = last;
    FreeSlots(range);
    range.presence = Presence::kAbsent;
    budget_.Release(DeviceBudget::Use::kChunks, BytesOf(range));
  }
  if (!all) --moving_;
  NotifyChange();
}

void Residency::AwaitPlanned() {
  MutexLock lock(mutex_);
  while (moving_ > 0) WaitForChange();
}

void Residency::Land() {
  MutexLock lock(mutex_);
  GEMINI_CHECK(moving_ > 0);
  --moving_;
  NotifyChange();
}

absl::Status Residency::EvictPlanned(RangeId id, bool stays) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  WaitWhileMoving(range);
  if (!range.dirty) TellGradientIsBelow(range);
  if (range.presence == Presence::kAbsent || (stays && !range.dirty)) return absl::OkStatus();
  if (!stays) GEMINI_RETURN_IF_ERROR(CheckUnpinned(range));
  if (range.dirty) {
    if (range.pins == 0) evictable_.Remove(id.value());
    range.busy = true;
    range.dirty = false;  // Who writes meanwhile says so again.
    const Presence before =
        std::exchange(range.presence, stays ? range.presence : Presence::kLeaving);
    ++moving_;
    const absl::Status status = CopyOut(range);
    --moving_;
    range.busy = false;
    if (!stays) range.presence = before;
    range.dirty |= !status.ok();
    if (range.pins == 0) evictable_.Add(id.value());
    Publish(range);
    NotifyChange();
    GEMINI_RETURN_IF_ERROR(status);
  }
  if (stays) return absl::OkStatus();
  Leave(id.value());
  budget_.Release(DeviceBudget::Use::kChunks, BytesOf(range));
  return absl::OkStatus();
}

absl::Status Residency::CopyOut(const Range& range) {
  const CopyEvent after = range.all_quiet();
  std::vector<std::byte*> addresses;
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    addresses.push_back(AddressOf(range.slot) + range.offset_bytes(i));
  }
  mutex_.Unlock();
  absl::Status status;
  {
    CopyBatch batch(copies_);
    for (int64_t i = 0; status.ok() && i < range.num_bundles; ++i) {
      status = batch.WriteBack(*range.store, range.chunk(i), addresses[i], after).status();
    }
  }
  mutex_.Lock();
  status.Update(copies_.status());  // It may not have been made.
  if (!status.ok()) return status;
  stats_.evict_bytes += range.offset_bytes(range.num_bundles);
  range.store->counters().AddEvictBytes(range.offset_bytes(range.num_bundles));
  TellGradientIsBelow(range);
  return status;
}

absl::Status Residency::BringGradient(RangeId id) { return EvictPlanned(id, /*stays=*/true); }

void Residency::TellGradientIsBelow(const Range& range) {
  for (int64_t i = 0; range.kind == ChunkKind::kGrad && i < range.num_bundles; ++i) {
    range.store->updates().GradientArrived(BundleOf(range.chunk(i)));
  }
}

void Residency::Nudge() {
  MutexLock lock(mutex_);
  NotifyChange();
}

}  // namespace gemini::client
