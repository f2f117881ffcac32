// SPDX-License-Identifier: Apache-2.0
#include "client/device/planned_placement.h"

#include <vector>

#include "gemini/system/status_macros.h"

namespace gemini::client {

absl::Status Vacate(DeviceTier& tier, absl::Span<std::pair<RangeId, SlotId>> keep) {
  MutexLock lock(tier.mutex);
  tier.AwaitMoves();
  std::vector<bool> stays(static_cast<size_t>(tier.table.size()));
  for (auto& [id, slot] : keep) {
    stays[id.value()] = tier.table.at(id).slot == slot;
    if (!stays[id.value()]) slot = kNoSlot;
  }
  std::vector<RangeId> victims;
  for (int64_t id = 0; id < tier.table.size(); ++id) {
    const DeviceRange& range = tier.table.at(RangeId(id));
    if (range.slot == kNoSlot || stays[id]) continue;
    GEMINI_RETURN_IF_ERROR(CheckUnpinned(range));
    victims.push_back(RangeId(id));
  }
  for (const RangeId victim : victims) GEMINI_RETURN_IF_ERROR(tier.Evict(victim));
  return absl::OkStatus();
}

FetchStart BeginFetch(DeviceTier& tier, RangeId id, SlotId slot, bool blank) {
  const DeviceRange& range = tier.table.at(id);
  constexpr DeviceBudget::Use kUse = DeviceBudget::Use::kChunks;
  tier.plan.Place(id, slot);
  FetchStart start = FetchStart::kEnded;
  for (; tier.progress.active(); tier.WaitForChange()) {
    if (!tier.plan.paused() && !tier.table.IsOccupied(id, slot) && range.host_writers == 0) {
      const bool charged = tier.budget.TryCharge(kUse, tier.table.BytesOf(range));
      if (charged) start = FetchStart::kStarted;
      if (!charged && tier.plan.OutRests()) start = FetchStart::kNoBudget;
      if (start != FetchStart::kEnded) break;
    }
    tier.NotifyChange();  // An operator that waits for this must see that it has to wait.
  }
  tier.plan.SetActivity(FollowedPlan::kIn, FollowedPlan::Activity::kWorking);
  if (start != FetchStart::kStarted) return start;
  if (blank) {
    tier.table.TakeSlots(id, slot, RangeState::kReserved);
    tier.NotifyChange();
  } else {
    tier.BeginFetch(id, slot, /*is_online=*/false);
  }
  return start;
}

absl::Status FinishFetch(DeviceTier& tier, RangeId id) {
  const absl::StatusOr<CopyEvent> copied = tier.CopyIn(id);
  if (!copied.ok()) tier.EndPlan(Divergence::kFailed);
  tier.EndFetch(id, copied.value_or(CopyEvent()), copied.ok());
  return copied.status();
}

}  // namespace gemini::client
