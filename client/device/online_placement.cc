// SPDX-License-Identifier: Apache-2.0
#include "client/device/online_placement.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/device_shortage.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

using Use = DeviceBudget::Use;

// Ranges that are fetched into DEVICE slots, and those that leave for them.
struct Replacement {
  std::vector<std::pair<RangeId, SlotId>> placements;
  std::vector<RangeId> victims;
  int64_t more_bytes = 0;  // What the placements take above what the victims leave.
};

// The distinct ones of `ids`.
std::vector<RangeId> Distinct(absl::Span<const RangeId> ids) {
  std::vector<RangeId> distinct(ids.begin(), ids.end());
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  return distinct;
}

bool Contains(const std::vector<RangeId>& ids, RangeId id) {
  return std::ranges::find(ids, id) != ids.end();
}

// As Contains, for what Distinct has sorted.
bool IsWanted(const std::vector<RangeId>& wanted, RangeId id) {
  return std::ranges::binary_search(wanted, id);
}

void AddVictim(const RangeTable& table, RangeId id, Replacement& replacement) {
  replacement.victims.push_back(id);
  replacement.more_bytes -= table.BytesOf(table.at(id));
}

// Finds slots for those of `wanted` that are absent, and the ranges to evict from them; no value if
// there are none. `move_all` takes every unpinned range off DEVICE first, even those of `wanted`,
// and places these again.
std::optional<Replacement> Place(const RangeTable& table, const std::vector<RangeId>& wanted,
                                 bool move_all) {
  Replacement replacement;
  DeviceSlots trial = table.slots();
  const auto vacate = [&](RangeId id) {
    trial.Free(table.at(id).slot, table.at(id).num_bundles);
    AddVictim(table, id, replacement);
  };
  std::vector<RangeId> missing;
  for (const RangeId id : wanted) {
    if (table.at(id).state == RangeState::kAbsent) missing.push_back(id);
  }
  RangeId id = move_all ? table.NextEvictable() : RangeId();
  for (; id != RangeId(); id = table.NextEvictable(id)) {
    vacate(id);
    if (IsWanted(wanted, id)) missing.push_back(id);
  }
  std::ranges::stable_sort(missing, std::greater(),
                           [&](RangeId range) { return table.at(range).num_bundles; });
  for (const RangeId range : missing) {
    const int64_t count = table.at(range).num_bundles;
    std::optional<SlotId> slot = trial.FindFree(count);
    if (!slot) {
      slot = trial.FindOldest(count, [&](int64_t occupant) -> int64_t {
        const DeviceRange& at = table.at(RangeId(occupant));
        const bool stays = at.pins > 0 || at.is_moving() || IsWanted(wanted, RangeId(occupant));
        return stays ? -1 : at.last_use;
      });
      if (!slot) return std::nullopt;
      for (int64_t i = slot->value(); i < slot->value() + count; ++i) {
        const int64_t occupant = trial.occupant(SlotId(i));
        if (occupant != DeviceSlots::kNobody) vacate(RangeId(occupant));
      }
    }
    trial.Take(*slot, count, range.value());
    replacement.placements.emplace_back(range, *slot);
    replacement.more_bytes += table.BytesOf(table.at(range));
  }
  return replacement;
}

// Charges what the replacement adds, with more victims if the budget needs them. Returns false if
// it cannot. The charge of a victim passes to those who come: if it were given back first, another
// thread's allocation could take it in between.
bool Charge(DeviceTier& tier, const std::vector<RangeId>& wanted, Replacement& replacement)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex) {
  RangeId candidate = tier.table.NextEvictable();
  for (;;) {
    const int64_t more_bytes = replacement.more_bytes;
    // More than a budget that was made smaller may be in use: then what leaves must make up for it.
    if (more_bytes > 0 ? tier.budget.TryCharge(Use::kChunks, more_bytes)
                       : tier.budget.used_bytes() + more_bytes <= tier.budget.budget_bytes()) {
      return true;
    }
    while (candidate != RangeId() &&
           (IsWanted(wanted, candidate) || Contains(replacement.victims, candidate))) {
      candidate = tier.table.NextEvictable(candidate);
    }
    if (candidate == RangeId()) return false;
    AddVictim(tier.table, candidate, replacement);
  }
}

// Evicts the victims, which are clean, and fetches in their place.
absl::Status Execute(DeviceTier& tier, absl::Span<const RangeId> ids,
                     const Replacement& replacement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex) {
  for (const RangeId victim : replacement.victims) tier.table.Leave(victim);
  tier.budget.Release(Use::kChunks, std::max<int64_t>(0, -replacement.more_bytes));
  std::vector<RangeId> held;  // What is there already must not leave meanwhile.
  for (const RangeId id : ids) {
    if (!tier.table.at(id).is_there()) continue;
    tier.table.Pin(id);
    held.push_back(id);
  }
  for (const auto& [id, slot] : replacement.placements) {
    tier.BeginFetch(id, slot, /*is_online=*/true);
  }
  tier.NotifyChange();  // Victims have left.
  absl::Status status;
  CopyEvent last;
  for (const auto& [id, slot] : replacement.placements) {
    const absl::StatusOr<CopyEvent> copied = tier.CopyIn(id);
    status = copied.status();
    if (!status.ok()) break;
    last.Join(*copied);
  }
  status.Update(tier.copies.status());
  // The next owner of the slots must not find a copy in flight.
  if (!status.ok()) {
    tier.mutex.Unlock();
    tier.copies.Wait(last);
    tier.mutex.Lock();
  }
  for (const auto& [id, slot] : replacement.placements) tier.EndFetch(id, last, status.ok());
  for (const RangeId id : held) tier.table.Unpin(id, /*dirty=*/false, {});
  return status;
}

absl::Status NoRoom(const DeviceTier& tier, const std::vector<RangeId>& wanted)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex) {
  int64_t needed_bytes = tier.table.pinned_bytes();
  for (const RangeId id : wanted) {
    if (tier.table.at(id).pins == 0) needed_bytes += tier.table.BytesOf(tier.table.at(id));
  }
  return DeviceTooSmall({.who = absl::StrCat("an operator, in chunks of ",
                                             FormatByteSize(tier.table.chunk_bytes()), ","),
                         .chunk_bytes = needed_bytes,
                         .non_model_bytes = tier.budget.non_model_bytes()},
                        tier.budget.budget_bytes());
}

}  // namespace

absl::Status BringIn(DeviceTier& tier, absl::Span<const RangeId> ids) {
  const std::vector<RangeId> wanted = Distinct(ids);
  std::optional<Replacement> replacement = Place(tier.table, wanted, /*move_all=*/false);
  // Unpinned ranges may split the room into pieces that are too small, each itself wanted.
  if (!replacement) replacement = Place(tier.table, wanted, /*move_all=*/true);
  if (!replacement || !Charge(tier, wanted, *replacement)) return NoRoom(tier, wanted);
  for (const RangeId victim : replacement->victims) {
    if (!tier.table.at(victim).dirty) continue;
    tier.budget.Release(Use::kChunks, std::max<int64_t>(0, replacement->more_bytes));
    return tier.Flush(victim);
  }
  return Execute(tier, ids, *replacement);
}

bool MakeRoom(DeviceTier& tier, int64_t size_bytes, absl::Status* why) {
  const auto fits = [&] {
    return size_bytes <= tier.budget.budget_bytes() - tier.budget.used_bytes();
  };
  MutexLock lock(tier.mutex);
  if (fits()) return true;
  OperatorPoint since = tier.stalls.Now();
  // The plan leaves this room, but what is due may not have left yet.
  while (!fits() && tier.progress.active() && !tier.plan.OutRests()) tier.WaitForChange();
  std::vector<RangeId> failed;
  while (!fits()) {
    RangeId victim = tier.table.NextEvictable();
    while (Contains(failed, victim)) victim = tier.table.NextEvictable(victim);
    if (victim == RangeId() && tier.moving == 0) break;
    tier.EndPlan(Divergence::kNonModel);
    if (victim == RangeId()) {
      tier.WaitForChange();  // What is on its way can leave once it is there.
      failed.clear();
      continue;
    }
    absl::Status status = tier.Evict(victim);
    if (status.ok()) continue;
    // One whose write-back finds no room in HOST stays. A clean one behind it may still go.
    failed.push_back(victim);
    if (why != nullptr) *why = std::move(status);
  }
  if (tier.table.size() > 0) {
    tier.stalls.Add(tier.table.at(RangeId(0)).store->counters(), StallCause::kRoom,
                    std::move(since));
  }
  return fits();
}

absl::Status SetBudget(DeviceTier& tier, int64_t device_bytes) {
  MutexLock lock(tier.mutex);
  // Equal: a call before could not make enough leave.
  if (device_bytes <= tier.budget.budget_bytes()) {
    tier.EndPlan(Divergence::kBudget);
    tier.AwaitMoves();
  }
  tier.budget.SetBudget(device_bytes);
  const int64_t num_slots = tier.table.slots().num_slots();
  tier.table.SetUsableSlots(std::min(num_slots, device_bytes / tier.table.chunk_bytes()));
  for (int64_t slot = tier.table.slots().num_usable(); slot < num_slots; ++slot) {
    const int64_t occupant = tier.table.slots().occupant(SlotId(slot));
    if (occupant != DeviceSlots::kNobody) GEMINI_RETURN_IF_ERROR(tier.Evict(RangeId(occupant)));
    const CopyEvent vacated = tier.table.vacated(SlotId(slot));
    tier.mutex.Unlock();
    tier.copies.Wait(vacated);
    tier.mutex.Lock();
  }
  while (tier.budget.used_bytes() > device_bytes) {
    const RangeId victim = tier.table.NextEvictable();
    if (victim != RangeId()) {
      GEMINI_RETURN_IF_ERROR(tier.Evict(victim));
    } else if (tier.moving > 0) {
      tier.WaitForChange();
    } else {
      return DeviceTooSmall({.who = "what is in use",
                             .chunk_bytes = tier.table.pinned_bytes(),
                             .non_model_bytes = tier.budget.non_model_bytes()},
                            device_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
