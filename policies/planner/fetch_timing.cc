// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/fetch_timing.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "policies/trace/range_max_tree.h"

namespace gemini::policies {
namespace {

// What a fetch has to wait for.
struct Earliest {
  int32_t after = 0;
  int32_t slots_shared = 0;  // Its slots that another range still has in interval `after`.
};

std::vector<Earliest> EarliestOf(const RangeTrace& trace, const NextUses& next_uses,
                                 const std::vector<Stay>& stays,
                                 const std::vector<int32_t>& order) {
  const int32_t n = trace.num_positions();
  std::vector<Earliest> earliest(stays.size(), Earliest{.after = -n});
  const auto not_before = [&](int32_t stay, int32_t after) {
    if (after > earliest[stay].after) earliest[stay] = {.after = after, .slots_shared = 0};
  };
  // The last interval of who was there before, by slot and by range: around the circle, as nobody
  // else is there when a stay begins.
  std::vector<int32_t> slot_last, range_last(trace.ranges.size(), -n);
  for (const Stay& stay : stays) {
    const size_t end = stay.slot + trace.ranges[stay.range].num_bundles;
    if (slot_last.size() < end) slot_last.resize(end, -n);
  }
  for (const bool is_round_before : {true, false}) {
    for (const int32_t i : order) {
      const Stay& stay = stays[i];
      if (stay.needed == kAlways) continue;
      const int32_t last = is_round_before ? stay.last - n : stay.last;
      const int64_t end = stay.slot + trace.ranges[stay.range].num_bundles;
      for (int64_t slot = stay.slot; slot < end; ++slot) {
        if (!is_round_before) {
          not_before(i, slot_last[slot]);
          if (slot_last[slot] == earliest[i].after) ++earliest[i].slots_shared;
        }
        slot_last[slot] = last;
      }
      if (!is_round_before) not_before(i, range_last[stay.range]);
      range_last[stay.range] = last;
    }
  }
  std::vector<std::vector<int32_t>> outs_of(trace.ranges.size());
  for (const RangeTrace::GradOut& out : trace.gradient_outs) {
    outs_of[out.range].push_back(out.position);
  }
  for (size_t i = 0; i < stays.size(); ++i) {
    const Stay& stay = stays[i];
    if (stay.needed == kAlways) continue;
    if (next_uses.ends_at_update[stay.range]) not_before(static_cast<int32_t>(i), -1);
    const std::vector<int32_t>& outs = outs_of[stay.range];
    if (outs.empty()) continue;
    // The interval of the last gradient that leaves before is over when the next operator asks.
    const auto next_out = std::lower_bound(outs.begin(), outs.end(), stay.needed);
    const int32_t last_out = next_out == outs.begin() ? outs.back() - n : *(next_out - 1);
    not_before(static_cast<int32_t>(i), last_out + 1);
  }
  return earliest;
}

}  // namespace

std::vector<int32_t> FetchTimes(const RangeTrace& trace, const NextUses& next_uses,
                                const std::vector<int32_t>& slots_at,
                                const std::vector<Stay>& stays) {
  const int32_t n = trace.num_positions();
  std::vector<int32_t> order(stays.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return stays[a].needed < stays[b].needed; });
  const std::vector<Earliest> earliest = EarliestOf(trace, next_uses, stays, order);
  // Slots taken less slots there are, by interval: above 0 is over the budget.
  std::vector<int32_t> taken(n + 1, 0);
  const auto cover = [&](int32_t first, int32_t end, int32_t count) {
    taken[first] += count;
    taken[end] -= count;
  };
  for (const Stay& stay : stays) {
    const int32_t count = static_cast<int32_t>(trace.ranges[stay.range].num_bundles);
    const int32_t first = stay.needed == kAlways ? 0 : stay.needed;
    cover(first, std::min(n, stay.last + 1), count);
    if (stay.last >= n) cover(0, stay.last + 1 - n, count);
  }
  int32_t sum = 0;
  for (int32_t i = 0; i < n; ++i) {
    sum += taken[i];
    taken[i] = sum - slots_at[i];
  }
  RangeMaxTree excess(absl::MakeConstSpan(taken).first(n));
  // Intervals from -n on are those of the round before.
  const auto add = [&](int32_t first, int32_t end, int32_t count) {
    if (first < 0) excess.Add(first + n, std::min(end, 0) + n, count);
    if (end > 0) excess.Add(std::max(first, 0), end, count);
  };
  const auto last_above = [&](int32_t first, int32_t end, int32_t bound) {
    constexpr int32_t kNone = std::numeric_limits<int32_t>::min();
    if (end > 0) {
      const int32_t found = excess.LastAbove(std::max(first, 0), end, bound);
      if (found >= 0) return found;
    }
    if (first >= 0) return kNone;
    const int32_t found = excess.LastAbove(first + n, std::min(end, 0) + n, bound);
    return found >= 0 ? found - n : kNone;
  };
  std::vector<int32_t> after(stays.size(), kAlways);
  for (const int32_t i : order) {
    const Stay& stay = stays[i];
    if (stay.needed == kAlways) continue;
    const int32_t count = static_cast<int32_t>(trace.ranges[stay.range].num_bundles);
    if (next_uses.comes_blank[stay.range] && stay.needed == next_uses.first[stay.range]) {
      after[i] = stay.needed;
      continue;
    }
    int32_t begin = earliest[i].after;
    // In interval `begin` it takes over slots that count there already.
    const int32_t shared = earliest[i].slots_shared;
    const int32_t full = last_above(begin, stay.needed, -count);
    if (full > begin || (full == begin && last_above(begin, begin + 1, shared - count) == begin)) {
      begin = full + 1;
    }
    if (begin == earliest[i].after && begin < stay.needed) {
      add(begin, begin + 1, count - shared);
      add(begin + 1, stay.needed, count);
    } else {
      add(begin, stay.needed, count);
    }
    after[i] = begin;
  }
  return after;
}

}  // namespace gemini::policies
