// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/replacement.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/planned_slots.h"
#include "policies/planner/slot_assignment.h"

namespace gemini::policies {
namespace {

constexpr int32_t kNotThere = -1;
constexpr int32_t kFromBefore = -1;  // A value of `since`: on DEVICE when the round began.
constexpr int64_t kMustStay = -1;    // In place of a cost.
// A run of slots is looked for around so many of the ranges that would leave first; so many are
// tried for that. Random rounds fetched 1.1% fewer bytes with 4 than with 1, and no fewer with 16.
constexpr int kMostWindows = 4;
constexpr size_t kMostVictims = 64;
// The interrupt is asked behind so many positions, or slots that the search for room looks at: some
// milliseconds.
constexpr int64_t kStepsBetweenAsking = int64_t{1} << 16;

// A range that is on DEVICE at a round's beginning.
struct Home {
  int32_t range;
  int32_t slot;
  int32_t last;  // Its last use, counted from this round's beginning: negative.
  bool dirty;
  bool operator==(const Home&) const = default;
};

struct RoundInputs {
  const RangeTrace& trace;
  const NextUses& next_uses;
  const std::vector<int32_t>& slots_at;
  int32_t num_slots;
  const ReplacementRule& rule;
  const PlanInterrupt& interrupt;
  bool has_runs;  // Some range takes several slots. If none does, slots are given in the end.
};

// One round, from the homes at its beginning.
class RoundPass {
 public:
  // `closed`: it has to end as it began. Then only homes may stay into the next round.
  RoundPass(const RoundInputs& in, const std::vector<Home>& homes, bool closed);

  absl::Status Run();

  // What is on DEVICE at the end, with times counted from the next round's beginning.
  std::vector<Home> EndState() const;
  // Returns, for a closed round, the homes that are not where they began, by range. There are none
  // if it ended as it began.
  std::vector<bool> Lost() const;
  // Returns the stays of a closed round that lost none.
  std::vector<Stay> TakeStays();

 private:
  struct Victim {
    int32_t next;
    bool dirty;
    int32_t last;
    int32_t range;
    // The top of a priority queue leaves first.
    bool operator<(const Victim& other) const {
      if (next != other.next) return next < other.next;
      if (dirty != other.dirty) return dirty;
      if (last != other.last) return last > other.last;
      return range > other.range;
    }
  };

  // A run of slots to be cleared, by its first, and what that costs.
  struct Window {
    int32_t first = -1;  // None.
    int64_t cost = 0;
  };

  // Side by side, for the search for room looks at several of them.
  struct RangeState {
    int32_t slot = kNotThere;
    int32_t home = kNotThere;
    int32_t since = kFromBefore;
    int32_t last = 0;
    int32_t next = kNever;
    int32_t wanted_at = -1;  // The last position that used it.
    int32_t bundles = 0;
    int32_t resident = 0;  // Where in residents_, while it is on DEVICE.
    bool dirty = false;
    bool kept = false;
  };

  int32_t BundlesOf(int32_t range) const { return at_[range].bundles; }
  bool IsKept(int32_t range) const { return at_[range].kept; }
  int32_t NextRoundUse(int32_t range) const;
  void Offer(int32_t range, int32_t position);
  void Enter(int32_t range, int32_t slot, int32_t position);
  void Remove(int32_t range, int32_t last);
  void Leave(int32_t range, StayEnd end, int32_t last);
  absl::Status BringIn(int32_t position);
  // Whether the range of the entry has left, was used again, or is used now.
  bool IsVoid(const Victim& victim, int32_t position) const {
    const RangeState& at = at_[victim.range];
    return at.slot == kNotThere || at.last != victim.last || at.wanted_at == position;
  }
  bool ClearHome(int32_t range, int32_t position);
  // Adds to the steps, and asks the interrupt where they are enough. False: it has said to stop.
  bool GoesOn(int64_t steps);
  void Clear(int32_t first, int32_t count);
  // The cheapest run of `count` slots to clear of those that contain the beginning of the range.
  // O(count), which `looks` grows by.
  Window CheapestAround(int32_t range, int32_t count, int32_t position, int64_t& looks) const;
  // The cheapest around those who would leave first, or -1. O(count + log ranges).
  int32_t FindWindow(int32_t count, int32_t position);
  // False: no run of slots was found that can be cleared.
  bool PlaceRun(int32_t range, int32_t position);
  bool PlaceRuns(int32_t position);
  void MoveAll(int32_t position);
  absl::Status EvictDownTo(int32_t num_slots, int32_t position);
  void EndUses(int32_t position);
  void Update(int32_t position);

  const RoundInputs& in_;
  const std::vector<Home>& homes_;
  const bool closed_;
  const int32_t num_positions_;
  PlannedSlots slots_;
  std::vector<RangeState> at_;      // By range.
  std::vector<int32_t> residents_;  // Ranges on DEVICE, in no order.
  std::priority_queue<Victim> victims_;
  std::vector<Stay> stays_;  // Ended ones; `needed` is `since`.
  std::vector<int32_t> missing_;
  std::vector<Victim> looked_at_;  // In one FindWindow; kept for its memory.
  size_t next_out_ = 0;
  int64_t steps_ = 0;              // Since the interrupt was asked.
  absl::Status stopped_;           // What it returned.
  const int32_t update_position_;  // Of an update that has ranges on DEVICE, or -1.
};

RoundPass::RoundPass(const RoundInputs& in, const std::vector<Home>& homes, bool closed)
    : in_(in),
      homes_(homes),
      closed_(closed),
      num_positions_(in.trace.num_positions()),
      slots_(in.num_slots, in.rule.oldest_first, in.has_runs),
      at_(in.trace.ranges.size()),
      update_position_(in.trace.keeps_gradients() ? num_positions_ - 1 : -1) {
  for (size_t range = 0; range < at_.size(); ++range) {
    at_[range].bundles = static_cast<int32_t>(in.trace.ranges[range].num_bundles);
    at_[range].kept = !in.rule.kept.empty() && in.rule.kept[range];
  }
  for (const Home& home : homes) {
    if (closed) {
      at_[home.range].home = home.slot;
      for (int32_t i = 0; i < BundlesOf(home.range); ++i) slots_.Reserve(home.slot + i);
    }
    slots_.Take(home.slot, BundlesOf(home.range), home.range);
    Enter(home.range, home.slot, kFromBefore);
    at_[home.range].last = home.last;
    at_[home.range].next = in.next_uses.first[home.range];
    at_[home.range].dirty = home.dirty;
    Offer(home.range, -1);
  }
}

int32_t RoundPass::NextRoundUse(int32_t range) const {
  if (in_.next_uses.ends_at_update[range]) return kNever;
  if (closed_ && at_[range].home == kNotThere) return kNever;
  return num_positions_ + in_.next_uses.first[range];
}

// Makes an unpinned range a candidate to leave.
void RoundPass::Offer(int32_t range, int32_t position) {
  int32_t next = at_[range].next;
  if (next != kNever) {
    if (IsKept(range)) return;
    if (in_.rule.spares_dirty && at_[range].dirty) next = position + (next - position) / 2;
  }
  victims_.push({.next = next, .dirty = at_[range].dirty, .last = at_[range].last, .range = range});
}

void RoundPass::Enter(int32_t range, int32_t slot, int32_t position) {
  at_[range].slot = slot;
  at_[range].since = position;
  at_[range].dirty = false;
  at_[range].resident = static_cast<int32_t>(residents_.size());
  residents_.push_back(range);
}

void RoundPass::Remove(int32_t range, int32_t last) {
  slots_.Free(at_[range].slot, BundlesOf(range), last);
  at_[range].slot = kNotThere;
  const int32_t other = residents_.back();
  residents_[at_[range].resident] = other;
  at_[other].resident = at_[range].resident;
  residents_.pop_back();
}

void RoundPass::Leave(int32_t range, StayEnd end, int32_t last) {
  stays_.push_back({.range = range,
                    .slot = at_[range].slot,
                    .needed = at_[range].since,
                    .last = last,
                    .end = end});
  Remove(range, last);
}

absl::Status RoundPass::EvictDownTo(int32_t num_slots, int32_t position) {
  while (slots_.num_used() > num_slots) {
    if (victims_.empty()) {
      const int64_t chunk_bytes = in_.trace.chunk_bytes;
      return absl::ResourceExhaustedError(absl::StrCat(
          "the policy keeps chunks that leave operator ", position, " of phase ", in_.trace.phase,
          " no room: it holds ", FormatByteSize(slots_.num_used() * chunk_bytes),
          " of chunks where ", FormatByteSize(in_.slots_at[position] * chunk_bytes),
          " remain beside non-model data, and needs ",
          FormatByteSize((in_.slots_at[position] - num_slots) * chunk_bytes),
          " more: raise --device-memory, keep a smaller fraction, or use --policy auto"));
    }
    const Victim victim = victims_.top();
    victims_.pop();
    if (IsVoid(victim, position)) continue;
    Leave(victim.range, StayEnd::kEvicted, victim.last);
  }
  return absl::OkStatus();
}

// Makes room where the range has to be at the round's end, unless what is there must stay. Who
// leaves is not the one used next the farthest ahead, but the range would have to come again.
bool RoundPass::ClearHome(int32_t range, int32_t position) {
  const int32_t first = at_[range].home, end = first + BundlesOf(range);
  for (int32_t slot = first; slot < end; ++slot) {
    const int32_t occupant = slots_.occupant(slot);
    if (occupant == PlannedSlots::kNobody) continue;
    if (!in_.has_runs || at_[occupant].wanted_at == position) return false;
    if (IsKept(occupant) && at_[occupant].next != kNever) return false;
  }
  Clear(first, BundlesOf(range));
  return true;
}

bool RoundPass::GoesOn(int64_t steps) {
  steps_ += steps;
  if (steps_ >= kStepsBetweenAsking && stopped_.ok()) {
    steps_ = 0;
    if (in_.interrupt) stopped_ = in_.interrupt();
  }
  return stopped_.ok();
}

RoundPass::Window RoundPass::CheapestAround(int32_t range, int32_t count, int32_t position,
                                            int64_t& looks) const {
  // A run that begins inside a range evicts nobody less when it begins where the range does.
  const int32_t middle = at_[range].slot;
  // Each chunk that has to come back costs one fetch, and more the sooner it does.
  const int64_t horizon = 4 * int64_t{num_positions_};
  const auto cost_at = [&](int32_t slot) -> int64_t {
    ++looks;
    const int32_t occupant = slots_.occupant(slot);
    if (occupant == PlannedSlots::kNobody) return 0;
    const RangeState& there = at_[occupant];
    if (there.wanted_at == position || (there.kept && there.next != kNever)) return kMustStay;
    return there.next == kNever ? 0 : (horizon - (there.next - position)) * there.bundles;
  };
  int32_t begin = middle;
  while (begin > 0 && slots_.BeginAt(begin - 1) + count > middle && cost_at(begin - 1) >= 0) {
    begin = slots_.BeginAt(begin - 1);
  }
  Window best;
  int64_t cost = 0;  // The cost of what begins in [begin, end).
  int32_t end = begin;
  for (; begin <= middle; begin = slots_.EndAt(begin)) {
    for (; end < begin + count; end = slots_.EndAt(end)) {
      if (end >= slots_.num_slots() || cost_at(end) < 0) return best;
      cost += cost_at(end);
    }
    if (best.first < 0 || cost < best.cost) best = {begin, cost};
    cost -= cost_at(begin);
  }
  return best;
}

int32_t RoundPass::FindWindow(int32_t count, int32_t position) {
  Window best;
  looked_at_.clear();
  int found = 0;
  while (found < kMostWindows && looked_at_.size() < kMostVictims && !victims_.empty()) {
    const Victim victim = victims_.top();
    victims_.pop();
    if (IsVoid(victim, position)) continue;
    looked_at_.push_back(victim);
    int64_t looks = 0;
    const Window window = CheapestAround(victim.range, count, position, looks);
    if (!GoesOn(looks)) break;  // What is placed then is of no use.
    if (window.first < 0) continue;
    ++found;
    if (best.first < 0 || window.cost < best.cost) best = window;
  }
  for (const Victim& victim : looked_at_) victims_.push(victim);
  return best.first;
}

bool RoundPass::PlaceRun(int32_t range, int32_t position) {
  const int32_t count = BundlesOf(range);
  int32_t first = at_[range].home;
  if (first == kNotThere || !ClearHome(range, position)) {
    first = slots_.FindFree(count);
    if (first < 0) {
      first = FindWindow(count, position);
      if (first < 0) return false;
      Clear(first, count);
    }
  }
  slots_.Take(first, count, range);
  Enter(range, first, position);
  return true;
}

void RoundPass::Clear(int32_t first, int32_t count) {
  for (int32_t slot = first; slot < first + count; ++slot) {
    const int32_t occupant = slots_.occupant(slot);
    if (occupant != PlannedSlots::kNobody) Leave(occupant, StayEnd::kEvicted, at_[occupant].last);
  }
}

bool RoundPass::PlaceRuns(int32_t position) {
  // The largest first: they find room the hardest.
  std::stable_sort(missing_.begin(), missing_.end(),
                   [&](int32_t a, int32_t b) { return BundlesOf(a) > BundlesOf(b); });
  return std::all_of(missing_.begin(), missing_.end(), [&](int32_t range) {
    return BundlesOf(range) == 1 || PlaceRun(range, position);
  });
}

// Others' ranges split the room: takes everything off DEVICE, this operator's ranges too, and
// places these from the bottom.
void RoundPass::MoveAll(int32_t position) {
  while (!residents_.empty()) {
    const int32_t range = residents_.back();
    // Those that were placed for this operator a moment ago have not been there before.
    if (at_[range].since == position) {
      Remove(range, position - 1);
    } else {
      Leave(range, StayEnd::kEvicted, at_[range].last);
    }
  }
  int32_t slot = 0;
  for (const RangeUse& use : in_.trace.uses_of(position)) {
    slots_.Take(slot, BundlesOf(use.range), use.range);
    Enter(use.range, slot, position);
    slot += BundlesOf(use.range);
  }
}

absl::Status RoundPass::BringIn(int32_t position) {
  missing_.clear();
  bool has_run = false;
  for (const RangeUse& use : in_.trace.uses_of(position)) {
    at_[use.range].wanted_at = position;
    if (at_[use.range].slot != kNotThere) continue;
    missing_.push_back(use.range);
    has_run |= BundlesOf(use.range) > 1;
  }
  if (has_run && !PlaceRuns(position)) MoveAll(position);
  int32_t missing_slots = 0;
  for (const int32_t range : missing_) {
    if (at_[range].slot == kNotThere) missing_slots += BundlesOf(range);
  }
  GEMINI_RETURN_IF_ERROR(EvictDownTo(in_.slots_at[position] - missing_slots, position));
  for (const int32_t range : missing_) {
    if (at_[range].slot != kNotThere) continue;
    if (at_[range].home != kNotThere && ClearHome(range, position)) {
      slots_.Take(at_[range].home, 1, range);
      Enter(range, at_[range].home, position);
    } else {
      Enter(range, slots_.TakeSingle(range), position);
    }
  }
  return absl::OkStatus();
}

void RoundPass::EndUses(int32_t position) {
  const RangeTrace::Operator& at = in_.trace.operators[position];
  for (int32_t i = at.first_use; i < at.first_use + at.num_uses; ++i) {
    const int32_t range = in_.trace.uses[i].range;
    at_[range].last = position;
    if (in_.next_uses.comes_blank[range] && in_.next_uses.next[i] == kNever) {
      Leave(range, StayEnd::kEvicted, position);
      continue;
    }
    // What the update wrote on DEVICE is written back at once, whether it stays or not.
    if (in_.trace.uses[i].written) at_[range].dirty = position != update_position_;
    at_[range].next = in_.next_uses.next[i] != kNever ? in_.next_uses.next[i] : NextRoundUse(range);
    if (in_.has_runs && at_[range].next == kNever) {
      // Runs are made of what is free, so nobody stays who is not used again.
      Leave(range, StayEnd::kEvicted, position);
    } else if (in_.rule.streams && !IsKept(range) && at_[range].next != position + 1) {
      Leave(range, StayEnd::kEvicted, position);
    } else {
      Offer(range, position);
    }
  }
  for (; next_out_ < in_.trace.gradient_outs.size() &&
         in_.trace.gradient_outs[next_out_].position == position;
       ++next_out_) {
    const int32_t range = in_.trace.gradient_outs[next_out_].range;
    if (at_[range].slot != kNotThere) at_[range].dirty = true;
  }
}

void RoundPass::Update(int32_t position) {
  for (int32_t slot = 0; slot < slots_.num_slots(); ++slot) {
    const int32_t range = slots_.occupant(slot);
    if (range == PlannedSlots::kNobody || !in_.next_uses.ends_at_update[range]) continue;
    // What the update has on DEVICE needs room, and better before than at its own turn: nobody uses
    // this any more.
    if (at_[range].dirty || in_.trace.ranges[range].kind == ChunkKind::kGrad ||
        update_position_ >= 0) {
      Leave(range, StayEnd::kEvicted, at_[range].last);
    } else {
      Leave(range, StayEnd::kStale, position);
    }
  }
}

absl::Status RoundPass::Run() {
  if (in_.interrupt) GEMINI_RETURN_IF_ERROR(in_.interrupt());
  for (int32_t position = 0; position < num_positions_; ++position) {
    GEMINI_RETURN_IF_ERROR(BringIn(position));
    EndUses(position);
    if (!GoesOn(1)) return stopped_;
  }
  if (!in_.trace.updated.empty()) Update(num_positions_ - 1);
  return absl::OkStatus();
}

std::vector<Home> RoundPass::EndState() const {
  std::vector<Home> homes;
  for (int32_t slot = 0; slot < slots_.num_slots(); ++slot) {
    const int32_t range = slots_.occupant(slot);
    if (range == PlannedSlots::kNobody || at_[range].slot != slot) continue;
    homes.push_back({.range = range,
                     .slot = slot,
                     .last = at_[range].last - num_positions_,
                     .dirty = at_[range].dirty});
  }
  return homes;
}

std::vector<bool> RoundPass::Lost() const {
  std::vector<bool> lost(at_.size());
  for (const Home& home : homes_) {
    lost[home.range] =
        in_.has_runs ? at_[home.range].slot != home.slot : at_[home.range].slot == kNotThere;
  }
  // One that left before its first use, and is back, need not have been there.
  for (const Stay& stay : stays_) {
    if (stay.needed == kFromBefore && stay.last < 0) lost[stay.range] = true;
  }
  return lost;
}

std::vector<Stay> RoundPass::TakeStays() {
  std::vector<int32_t> head_last(at_.size(), kNever);  // For homes that left in this round.
  std::vector<Stay> stays;
  for (const Stay& stay : stays_) {
    if (stay.needed == kFromBefore) {
      head_last[stay.range] = stay.last;
    } else {
      stays.push_back(stay);
    }
  }
  for (int32_t slot = 0; slot < slots_.num_slots(); ++slot) {
    const int32_t range = slots_.occupant(slot);
    if (range == PlannedSlots::kNobody || at_[range].slot != slot) continue;
    Stay stay = {.range = range, .slot = slot, .needed = at_[range].since, .last = at_[range].last};
    if (at_[range].home != kNotThere) {
      stay.end = at_[range].since == kFromBefore ? StayEnd::kStays : StayEnd::kEvicted;
      stay.last =
          at_[range].since == kFromBefore ? num_positions_ - 1 : num_positions_ + head_last[range];
    }
    stays.push_back(stay);
  }
  return stays;
}

struct Closed {
  std::vector<Stay> stays;
  int64_t fetched_slots = 0;
  bool kept_all = false;  // All of the homes.
};

// Plays rounds that end as they begin, from ever fewer homes, until one does.
absl::StatusOr<Closed> Close(const RoundInputs& in, std::vector<Home> homes) {
  // Most often one or two are enough.
  for (int trial = 0;; ++trial) {
    if (trial == in.rule.most_closings) homes.clear();
    RoundPass pass(in, homes, /*closed=*/true);
    GEMINI_RETURN_IF_ERROR(pass.Run());
    const std::vector<bool> lost = pass.Lost();  // Before its homes change.
    if (std::any_of(lost.begin(), lost.end(), [](bool is_lost) { return is_lost; })) {
      std::erase_if(homes, [&](const Home& home) { return lost[home.range]; });
      continue;
    }
    Closed closed = {.stays = pass.TakeStays()};
    if (!in.has_runs) {
      const std::vector<int32_t> without_place =
          AssignSlots(in.trace.num_positions(), in.num_slots, closed.stays);
      if (!without_place.empty()) {
        // In one pass: hundreds of thousands may be without a place at once.
        std::vector<bool> has_none(in.trace.ranges.size());
        for (const int32_t range : without_place) has_none[range] = true;
        std::erase_if(homes, [&](const Home& home) { return has_none[home.range]; });
        continue;
      }
    }
    for (const Stay& stay : closed.stays) {
      if (stay.needed == kAlways) continue;
      closed.fetched_slots += in.trace.ranges[stay.range].num_bundles;
    }
    closed.kept_all = trial == 0;
    return closed;
  }
}

absl::Status CheckSlots(const RangeTrace& trace, const std::vector<int32_t>& slots_at,
                        int32_t num_slots) {
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    int64_t chunks = 0;
    for (const RangeUse& use : trace.uses_of(position)) {
      chunks += trace.ranges[use.range].num_bundles;
    }
    if (chunks <= std::min(slots_at[position], num_slots)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "operator ", position, " uses ", chunks, " chunks at once, of ", slots_at[position],
        " slots beside its non-model data and ", num_slots, " in all"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Stay>> MakeStays(const RangeTrace& trace, const NextUses& next_uses,
                                            const std::vector<int32_t>& slots_at, int32_t num_slots,
                                            const ReplacementRule& rule,
                                            const PlanInterrupt& interrupt) {
  GEMINI_RETURN_IF_ERROR(CheckSlots(trace, slots_at, num_slots));
  const bool has_runs = std::any_of(trace.uses.begin(), trace.uses.end(), [&](const RangeUse& use) {
    return trace.ranges[use.range].num_bundles > 1;
  });
  const RoundInputs in = {trace, next_uses, slots_at, num_slots, rule, interrupt, has_runs};
  if (!rule.looks_ahead) {
    GEMINI_ASSIGN_OR_RETURN(Closed closed, Close(in, {}));
    return std::move(closed.stays);
  }
  std::optional<Closed> best;
  std::vector<Home> homes;
  for (int round = 0; round < rule.most_rounds; ++round) {
    RoundPass pass(in, homes, /*closed=*/false);
    const absl::Status played = pass.Run();
    // Out of time, those of an earlier round are better than none.
    if (best && absl::IsDeadlineExceeded(played)) break;
    GEMINI_RETURN_IF_ERROR(played);
    std::vector<Home> end = pass.EndState();
    // Where a round ends as it began, all that follow are like it.
    if (round > 0 && end == homes) break;
    homes = std::move(end);
    absl::StatusOr<Closed> closed = Close(in, homes);
    if (best && absl::IsDeadlineExceeded(closed.status())) break;
    GEMINI_RETURN_IF_ERROR(closed.status());
    const bool kept_all = closed->kept_all;  // Then the next round would be like it.
    if (!best || closed->fetched_slots < best->fetched_slots) best = *std::move(closed);
    if (kept_all) break;
  }
  return std::move(best->stays);
}

}  // namespace gemini::policies
