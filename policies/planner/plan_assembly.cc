// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/plan_assembly.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace gemini::policies {
namespace {

// Whether each stay leaves something to write back: written by an operator, or by a gradient.
std::vector<bool> DirtyStays(const RangeTrace& trace, const std::vector<Stay>& stays) {
  const int32_t n = trace.num_positions();
  std::vector<std::vector<int32_t>> writes_of(trace.ranges.size());
  size_t next_out = 0;
  for (int32_t position = 0; position < n; ++position) {
    for (const RangeUse& use : trace.uses_of(position)) {
      if (use.written) writes_of[use.range].push_back(position);
    }
    for (; next_out < trace.gradient_outs.size() &&
           trace.gradient_outs[next_out].position == position;
         ++next_out) {
      writes_of[trace.gradient_outs[next_out].range].push_back(position);
    }
  }
  std::vector<bool> dirty;
  for (const Stay& stay : stays) {
    const std::vector<int32_t>& writes = writes_of[stay.range];
    const auto first = std::lower_bound(writes.begin(), writes.end(), stay.needed);
    dirty.push_back((first != writes.end() && *first <= stay.last) ||
                    (!writes.empty() && writes.front() + n <= stay.last));
  }
  return dirty;
}

// By slot: the position for which it is first fetched into in a round.
std::vector<int32_t> FirstNeeds(const RangeTrace& trace, const std::vector<Stay>& stays) {
  std::vector<int32_t> first;
  for (const Stay& stay : stays) {
    const size_t end = stay.slot + trace.ranges[stay.range].num_bundles;
    if (first.size() < end) first.resize(end, kNever);
    if (stay.needed == kAlways) continue;
    for (size_t slot = stay.slot; slot < end; ++slot) {
      first[slot] = std::min(first[slot], stay.needed);
    }
  }
  return first;
}

}  // namespace

Plan AssemblePlan(const PlanInputs& in, const RangeTrace& trace, const NextUses& next_uses,
                  const std::vector<Stay>& stays, const std::vector<int32_t>& fetch_after) {
  const int32_t n = trace.num_positions();
  Plan plan;
  plan.phase = trace.phase;
  plan.fingerprint = trace.fingerprint;
  plan.policy = in.policy;
  plan.chunk_bytes = trace.chunk_bytes;
  plan.device_bytes = in.budget_bytes[Tier::kDevice];
  plan.ranges = trace.ranges;
  plan.updated = trace.updated;
  plan.device_updates = trace.device_updates;
  plan.late_gradients = trace.late_gradients;
  PinnedUses pinned(trace);
  plan.first_use = std::move(pinned.first_use);
  plan.uses = std::move(pinned.uses);
  std::vector<bool> changes_on_device(trace.ranges.size());
  for (const PlannedUpdate& update : trace.device_updates) {
    for (const int32_t range : update.changed()) changes_on_device[range] = true;
  }
  std::vector<bool> is_late(trace.ranges.size());
  for (const int32_t range : trace.late_gradients) is_late[range] = true;
  const std::vector<bool> dirty = DirtyStays(trace, stays);
  struct Leaving {
    PlannedEviction eviction;
    int32_t needed;  // Behind the last operator: when the next round needs the room, or the update.
    bool operator<(const Leaving& other) const {
      // What is dropped at once does not wait behind what is written back, nor this behind what
      // stays.
      const auto key = [](const Leaving& of) {
        return std::tuple(of.eviction.after, of.eviction.stays, of.eviction.writes_back, of.needed);
      };
      return key(*this) < key(other);
    }
  };
  std::vector<Leaving> leaving;
  const std::vector<int32_t> first_needs = FirstNeeds(trace, stays);
  for (size_t i = 0; i < stays.size(); ++i) {
    const Stay& stay = stays[i];
    const SlotId slot(stay.slot);
    if (stay.needed != kAlways) {
      const bool early = fetch_after[i] < 0;
      plan.fetches.push_back({.range = stay.range,
                              .slot = slot,
                              .after = early ? fetch_after[i] + n : fetch_after[i],
                              .needed_at = early ? stay.needed + n : stay.needed,
                              .blank = next_uses.comes_blank[stay.range] &&
                                       stay.needed == next_uses.first[stay.range]});
      if (early || stay.last >= n) plan.initial.push_back({.range = stay.range, .slot = slot});
    } else {
      plan.initial.push_back({.range = stay.range, .slot = slot});
    }
    // Nothing else writes to what is updated on DEVICE: once it is written back, it is clean.
    const bool outlives_update =
        changes_on_device[stay.range] && (stay.needed == kAlways || stay.last >= n);
    if (outlives_update) {
      leaving.push_back(
          {{.range = stay.range, .after = n - 1, .writes_back = true, .stays = true}, kNever});
    }
    if (stay.end == StayEnd::kEvicted) {
      int32_t needed = 0;
      if (stay.last == n - 1) {
        const auto first_need = first_needs.begin() + stay.slot;
        needed = *std::min_element(first_need, first_need + trace.ranges[stay.range].num_bundles);
        // Its parameters come when it has arrived, and they are updated.
        if (is_late[stay.range]) {
          needed = std::min(needed, next_uses.first[RangeTrace::ParamOf(stay.range)]);
        }
      }
      leaving.push_back({{.range = stay.range,
                          .after = stay.last % n,
                          .writes_back = dirty[i] && !outlives_update},
                         needed});
    }
  }
  std::sort(plan.initial.begin(), plan.initial.end(),
            [](const PlannedResident& a, const PlannedResident& b) { return a.slot < b.slot; });
  std::stable_sort(plan.fetches.begin(), plan.fetches.end(),
                   [](const PlannedFetch& a, const PlannedFetch& b) {
                     return std::pair(a.needed_at, a.after) < std::pair(b.needed_at, b.after);
                   });
  std::stable_sort(leaving.begin(), leaving.end());
  for (const Leaving& leaves : leaving) plan.evictions.push_back(leaves.eviction);
  return plan;
}

}  // namespace gemini::policies
