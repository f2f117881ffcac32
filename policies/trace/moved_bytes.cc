// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/moved_bytes.h"

#include <algorithm>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "gemini/system/status_macros.h"
#include "policies/trace/next_uses.h"

namespace gemini::policies {
namespace {

enum class Replaces { kLeastRecentlyUsed, kFarthestNextUse };

// Replacement on demand that counts chunks and knows no slots.
class Counted {
 public:
  Counted(const RangeTrace& trace, const NextUses& next_uses, std::vector<int32_t> slots_at,
          Replaces replaces)
      : trace_(trace),
        next_uses_(next_uses),
        slots_at_(std::move(slots_at)),
        replaces_(replaces),
        chunks_(trace.ranges.size(), 0),
        dirty_(trace.ranges.size()),
        stamps_(trace.ranges.size(), 0) {}

  // Moved in this round.
  MovedBytes PlayRound();
  // By range: its chunks on DEVICE.
  const std::vector<int64_t>& chunks() const { return chunks_; }

 private:
  struct Victim {
    int64_t key;  // The largest leaves first.
    int32_t range;
    int64_t stamp;
    bool operator<(const Victim& other) const {
      return key != other.key ? key < other.key : range > other.range;
    }
  };

  void BringIn(int32_t position);
  void EndUses(int32_t position);
  void Update();
  void WriteBack(int32_t range, int64_t chunks) {
    if (dirty_[range]) moved_.evict_bytes += chunks * trace_.PayloadOf(trace_.ranges[range]);
  }

  const RangeTrace& trace_;
  const NextUses& next_uses_;
  const std::vector<int32_t> slots_at_;
  const Replaces replaces_;
  std::vector<int64_t> chunks_;
  std::vector<bool> dirty_;
  std::vector<int64_t> stamps_;  // By range: of its newest entry in victims_; others are void.
  std::priority_queue<Victim> victims_;
  int64_t clock_ = 0;
  int64_t used_ = 0;
  int64_t round_begin_ = 0;
  MovedBytes moved_;
  size_t next_out_ = 0;
};

MovedBytes Counted::PlayRound() {
  moved_ = {};
  next_out_ = 0;
  for (int32_t position = 0; position < trace_.num_positions(); ++position) {
    BringIn(position);
    EndUses(position);
  }
  if (!trace_.updated.empty()) Update();
  round_begin_ += trace_.num_positions();
  return moved_;
}

void Counted::BringIn(int32_t position) {
  for (const RangeUse& use : trace_.uses_of(position)) {
    const int64_t missing = trace_.ranges[use.range].num_bundles - chunks_[use.range];
    moved_.fetch_bytes += missing * trace_.PayloadOf(trace_.ranges[use.range]);
    used_ += missing;
    chunks_[use.range] += missing;
    stamps_[use.range] = ++clock_;  // Pinned: what victims_ has of it is void.
  }
  while (used_ > slots_at_[position]) {
    const Victim victim = victims_.top();
    if (stamps_[victim.range] != victim.stamp) {
      victims_.pop();
      continue;
    }
    int64_t& there = chunks_[victim.range];
    const int64_t leaving = replaces_ == Replaces::kLeastRecentlyUsed
                                ? there
                                : std::min(there, used_ - slots_at_[position]);
    WriteBack(victim.range, leaving);
    there -= leaving;
    used_ -= leaving;
    if (there > 0) continue;
    victims_.pop();
    dirty_[victim.range] = false;
    stamps_[victim.range] = ++clock_;
  }
}

void Counted::EndUses(int32_t position) {
  const RangeTrace::Operator& at = trace_.operators[position];
  for (int32_t i = at.first_use; i < at.first_use + at.num_uses; ++i) {
    const int32_t range = trace_.uses[i].range;
    if (trace_.uses[i].written) dirty_[range] = true;
    int64_t key = -clock_;
    if (replaces_ == Replaces::kFarthestNextUse) {
      if (next_uses_.next[i] != kNever) {
        key = round_begin_ + next_uses_.next[i];
      } else if (next_uses_.ends_at_update[range]) {
        key = std::numeric_limits<int64_t>::max();
      } else {
        key = round_begin_ + trace_.num_positions() + next_uses_.first[range];
      }
    }
    stamps_[range] = ++clock_;
    victims_.push({.key = key, .range = range, .stamp = clock_});
  }
  for (; next_out_ < trace_.gradient_outs.size() &&
         trace_.gradient_outs[next_out_].position == position;
       ++next_out_) {
    const RangeTrace::GradOut& out = trace_.gradient_outs[next_out_];
    if (chunks_[out.range] > 0) {
      dirty_[out.range] = true;
    } else {
      moved_.evict_bytes += out.size_bytes;
    }
  }
}

void Counted::Update() {
  for (size_t range = 0; range < chunks_.size(); ++range) {
    if (chunks_[range] == 0 || !next_uses_.ends_at_update[range]) continue;
    WriteBack(static_cast<int32_t>(range), chunks_[range]);
    used_ -= chunks_[range];
    chunks_[range] = 0;
    dirty_[range] = false;
    stamps_[range] = ++clock_;
  }
}

// Bytes that leave DEVICE whatever the placement: each gradient, by itself or with its range where
// an operator uses that too; and what is written there before an update that reads it.
int64_t FewestEvictedBytes(const RangeTrace& trace, const NextUses& next_uses) {
  std::vector<bool> is_written(trace.ranges.size());
  for (const RangeUse& use : trace.uses) {
    if (use.written) is_written[use.range] = true;
  }
  std::vector<int64_t> out_bytes(trace.ranges.size(), 0);
  for (const RangeTrace::GradOut& out : trace.gradient_outs) {
    out_bytes[out.range] += out.size_bytes;
  }
  int64_t bytes = 0;
  for (size_t range = 0; range < trace.ranges.size(); ++range) {
    const PlannedRange& chunks = trace.ranges[range];
    const int64_t range_bytes = chunks.num_bundles * trace.PayloadOf(chunks);
    if (next_uses.first[range] == kNever) {
      bytes += out_bytes[range];
    } else if (!next_uses.ends_at_update[range]) {
      continue;  // It may stay there for ever.
    } else if (is_written[range]) {
      bytes += range_bytes;
    } else {
      bytes += std::min(out_bytes[range], range_bytes);
    }
  }
  return bytes;
}

}  // namespace

absl::StatusOr<MovedBytes> SimulateLru(const RangeTrace& trace, int64_t device_bytes) {
  GEMINI_ASSIGN_OR_RETURN(std::vector<int32_t> slots_at, SlotsAtPositions(trace, device_bytes));
  const NextUses next_uses(trace);
  Counted lru(trace, next_uses, std::move(slots_at), Replaces::kLeastRecentlyUsed);
  constexpr int kWarmUps = 2, kRounds = 4;
  for (int i = 0; i < kWarmUps; ++i) lru.PlayRound();
  MovedBytes sum;
  for (int i = 0; i < kRounds; ++i) {
    const MovedBytes moved = lru.PlayRound();
    sum.fetch_bytes += moved.fetch_bytes;
    sum.evict_bytes += moved.evict_bytes;
  }
  return MovedBytes{sum.fetch_bytes / kRounds, sum.evict_bytes / kRounds};
}

absl::StatusOr<MovedBytes> FewestBytes(const RangeTrace& trace, int64_t device_bytes) {
  GEMINI_ASSIGN_OR_RETURN(std::vector<int32_t> slots_at, SlotsAtPositions(trace, device_bytes));
  const NextUses next_uses(trace);
  // A plan that repeats every round is one infinite sequence among all, and none fetches fewer than
  // farthest next use does. Where that comes back to a state, its mean between is the least; else
  // what the plan's own first state may have saved is taken off.
  const int64_t most_at_start = std::min(slots_at.front(), slots_at.back());
  constexpr int kRounds = 32;
  Counted belady(trace, next_uses, std::move(slots_at), Replaces::kFarthestNextUse);
  std::map<std::vector<int64_t>, std::pair<int64_t, int64_t>>
      seen;  // State: rounds, chunks so far.
  int64_t chunks = 0, rounds = 0, saved = most_at_start;
  seen[belady.chunks()] = {0, 0};
  while (rounds < kRounds) {
    chunks += belady.PlayRound().fetch_bytes / trace.chunk_bytes;
    const auto [at, is_new] = seen.insert({belady.chunks(), {++rounds, chunks}});
    if (is_new) continue;
    rounds -= at->second.first;
    chunks -= at->second.second;
    saved = 0;
    break;
  }
  const int64_t fewest = std::max<int64_t>(0, (chunks - saved + rounds - 1) / rounds);
  return MovedBytes{.fetch_bytes = fewest * trace.chunk_bytes,
                    .evict_bytes = FewestEvictedBytes(trace, next_uses)};
}

}  // namespace gemini::policies
