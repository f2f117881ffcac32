// SPDX-License-Identifier: Apache-2.0
// The part of Residency that places ranges on-line, with the lock held throughout.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/device/residency.h"
#include "gemini/byte_size.h"
#include "gemini/device_shortage.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// Whether a chunk of the range is committed on DEVICE, and nowhere else.
bool HasSoleCopy(const RangeChunks& range) {
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    const std::optional<ChunkSlot> place = range.store->CommittedPlace(range.chunk(i));
    if (place && place->tier == Tier::kDevice) return true;
  }
  return false;
}

}  // namespace

absl::Status Residency::BringIn(absl::Span<const RangeId> ids) {
  std::optional<RangeReplacement> replacement;
  const absl::Cleanup unmark = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const RangeId id : ids) ranges_[id.value()].wanted = false;
    if (!replacement) return;
    for (const int64_t victim : replacement->victims) ranges_[victim].leaving = false;
  };
  std::vector<int64_t> missing;
  for (const RangeId id : ids) {
    Range& range = ranges_[id.value()];
    if (!range.wanted && range.presence == Presence::kAbsent) missing.push_back(id.value());
    range.wanted = true;
  }
  replacement = Place(missing, /*move_all=*/false);
  // Unpinned ranges may split the room into pieces that are too small, each itself wanted.
  if (!replacement) replacement = Place(missing, /*move_all=*/true);
  return replacement && Charge(*replacement) ? Execute(*replacement) : NoRoom(ids);
}

std::optional<RangeReplacement> Residency::Place(std::vector<int64_t> missing, bool move_all) {
  RangeReplacement replacement;
  DeviceSlots trial = slots_;
  const auto vacate = [&](int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Range& range = ranges_[id];
    trial.Free(range.slot, range.num_bundles);
    replacement.victims.push_back(id);
    replacement.freed_bytes += BytesOf(range);
  };
  if (move_all) {
    for (int64_t id = evictable_.oldest(); id != LruList::kNone; id = evictable_.newer(id)) {
      vacate(id);
      if (ranges_[id].wanted) missing.push_back(id);
    }
  }
  std::stable_sort(missing.begin(), missing.end(),
                   [this](int64_t a, int64_t b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     return ranges_[a].num_bundles > ranges_[b].num_bundles;
                   });
  for (const int64_t id : missing) {
    const int64_t count = ranges_[id].num_bundles;
    std::optional<SlotId> slot = trial.FindFree(count);
    if (!slot) {
      slot = trial.FindOldest(
          count, [this](int64_t occupant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> int64_t {
            const Range& range = ranges_[occupant];
            return range.pins > 0 || range.wanted ? -1 : range.last_use;
          });
      if (!slot) return std::nullopt;
      for (int64_t i = slot->value(); i < slot->value() + count; ++i) {
        if (trial.occupant(SlotId(i)) != DeviceSlots::kNobody) vacate(trial.occupant(SlotId(i)));
      }
    }
    trial.Take(*slot, count, id);
    replacement.placements.push_back({.range = id, .slot = *slot});
    replacement.placed_bytes += BytesOf(ranges_[id]);
  }
  for (const int64_t victim : replacement.victims) ranges_[victim].leaving = true;
  return replacement;
}

bool Residency::Charge(RangeReplacement& replacement) {
  int64_t candidate = evictable_.oldest();
  for (;;) {
    const int64_t more_bytes = replacement.placed_bytes - replacement.freed_bytes;
    // More than a budget that was made smaller may be in use: then what leaves must make up for it.
    if (more_bytes > 0 ? budget_.TryCharge(DeviceBudget::Use::kChunks, more_bytes)
                       : budget_.used_bytes() + more_bytes <= budget_.budget_bytes()) {
      return true;
    }
    while (candidate != LruList::kNone &&
           (ranges_[candidate].wanted || ranges_[candidate].leaving)) {
      candidate = evictable_.newer(candidate);
    }
    if (candidate == LruList::kNone) return false;
    replacement.victims.push_back(candidate);  // First: it may throw.
    ranges_[candidate].leaving = true;
    replacement.freed_bytes += BytesOf(ranges_[candidate]);
  }
}

// The charge of a victim's slots passes to those who come: giving it back first would let another
// thread's allocation take it in between.
absl::Status Residency::Execute(const RangeReplacement& replacement) {
  int64_t charged_bytes = std::max<int64_t>(0, replacement.placed_bytes - replacement.freed_bytes);
  absl::Status status;
  CopyEvent last;
  {
    CopyBatch batch(copies_);
    for (const int64_t victim : replacement.victims) {
      const bool sole_copy = HasSoleCopy(ranges_[victim]);
      status = Evict(victim, batch);
      if (!status.ok()) break;
      charged_bytes += BytesOf(ranges_[victim]);
      // It will be fetched from where it is being written to; or its commit still names slots that
      // others come into.
      if (ranges_[victim].wanted || sole_copy) batch.Drain();
    }
    for (const RangePlacement& placement : replacement.placements) {
      const Range& range = ranges_[placement.range];
      for (int64_t i = 0; status.ok() && i < range.num_bundles; ++i) {
        const absl::StatusOr<CopyEvent> fetched = batch.Fetch(
            *range.store, range.chunk(i), AddressOf(placement.slot) + range.offset_bytes(i),
            FetchableAfter(range, placement.slot, i), landings_);
        status = fetched.status();
        if (!status.ok()) break;
        last = *fetched;
        stats_.fetch_bytes += range.payload_bytes;
        range.store->counters().AddFetchBytes(range.payload_bytes);
      }
    }
  }  // Drained: what left is in HOST, or committed there.
  status.Update(copies_.status());
  // The next owner of the slots must not find a copy in flight.
  if (!status.ok()) copies_.Wait(last);
  if (status.ok()) {
    for (const RangePlacement& placement : replacement.placements) {
      Range& range = ranges_[placement.range];
      slots_.Take(placement.slot, range.num_bundles, placement.range);
      range.presence = Presence::kSettling;
      range.settled = last;
      range.is_online = true;
      Enter(placement.range, placement.slot);
    }
    charged_bytes -= replacement.placed_bytes;
  }
  budget_.Release(DeviceBudget::Use::kChunks, charged_bytes);
  return status;
}

absl::Status Residency::NoRoom(absl::Span<const RangeId> ids) const {
  int64_t needed_bytes = 0;
  std::vector<RangeId> unique(ids.begin(), ids.end());
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  for (const RangeId id : unique) {
    if (ranges_[id.value()].pins == 0) needed_bytes += BytesOf(ranges_[id.value()]);
  }
  return DeviceTooSmall(
      {.who = absl::StrCat("an operator, in chunks of ", FormatByteSize(chunk_bytes_), ","),
       .chunk_bytes = needed_bytes + pinned_bytes_,
       .non_model_bytes = budget_.non_model_bytes()},
      budget_.budget_bytes());
}

absl::Status Residency::SetBudget(int64_t device_bytes) {
  MutexLock lock(mutex_);
  // Equal: a call before could not make enough leave.
  if (device_bytes <= budget_.budget_bytes()) {
    if (planned_ != nullptr) planned_->Interrupt(Divergence::kBudget);
    NotifyChange();
    while (moving_ > 0) WaitForChange();
  }
  budget_.SetBudget(device_bytes);
  slots_.SetUsable(std::min(num_arena_slots_, device_bytes / chunk_bytes_));
  const auto evict = [this](int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    GEMINI_RETURN_IF_ERROR(CheckUnpinned(ranges_[id]));
    {
      CopyBatch batch(copies_);
      GEMINI_RETURN_IF_ERROR(Evict(id, batch));
    }
    budget_.Release(DeviceBudget::Use::kChunks, BytesOf(ranges_[id]));
    return absl::OkStatus();
  };
  for (int64_t slot = slots_.num_usable(); slot < num_arena_slots_; ++slot) {
    const int64_t occupant = slots_.occupant(SlotId(slot));
    if (occupant != DeviceSlots::kNobody) GEMINI_RETURN_IF_ERROR(evict(occupant));
    copies_.Wait(vacated_[slot]);
  }
  while (budget_.used_bytes() > device_bytes && evictable_.oldest() != LruList::kNone) {
    GEMINI_RETURN_IF_ERROR(evict(evictable_.oldest()));
  }
  if (budget_.used_bytes() <= device_bytes) return absl::OkStatus();
  return DeviceTooSmall({.who = "what is in use",
                         .chunk_bytes = pinned_bytes_,
                         .non_model_bytes = budget_.non_model_bytes()},
                        device_bytes);
}

absl::Status Residency::Evict(int64_t id, CopyBatch& batch) {
  Range& range = ranges_[id];
  if (range.dirty) GEMINI_RETURN_IF_ERROR(WriteBack(range, batch));
  Leave(id);
  return absl::OkStatus();
}

absl::Status Residency::WriteBack(Range& range, CopyBatch& batch) {
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    GEMINI_ASSIGN_OR_RETURN(
        const CopyEvent copied,
        batch.WriteBack(*range.store, range.chunk(i), AddressOf(range.slot) + range.offset_bytes(i),
                        range.all_quiet()));
    const auto [begin, last] = range.slots_of(i);
    for (int64_t slot = begin; slot <= last; ++slot)
      vacated_[range.slot.value() + slot].Join(copied);
    stats_.evict_bytes += range.payload_bytes;
    range.store->counters().AddEvictBytes(range.payload_bytes);
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
