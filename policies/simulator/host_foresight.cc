// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_foresight.h"

#include <algorithm>

namespace gemini::policies {
namespace {

// Reads are begun as if each took so many times what it should: the disk has other work, too.
constexpr int64_t kHaste = 2;
constexpr int64_t kMostUses = 4096;  // That are looked at.

}  // namespace

HostForesight::HostForesight(absl::Span<const PlannedHostUse> uses, int64_t round_ns,
                             int64_t read_ns, int32_t space, int64_t num_chunks)
    : round_ns_(round_ns),
      read_ns_(read_ns),
      first_of_(num_chunks + 1, 0),
      next_(num_chunks, kNoUse) {
  const auto in_range = [](int64_t ns) { return ns >= 0 && ns <= kMostNs; };
  if (!in_range(round_ns) || !in_range(read_ns) ||
      !std::ranges::all_of(uses, in_range, &PlannedHostUse::at_ns)) {
    return;
  }
  for (const PlannedHostUse& use : uses) {
    const int64_t chunk = use.chunk.value();
    if (use.space != space || chunk < 0 || chunk >= num_chunks) continue;
    if (next_[chunk] == kNoUse) next_[chunk] = static_cast<int64_t>(uses_.size());
    uses_.push_back({use.chunk, use.overwrites, use.at_ns});
    ++first_of_[chunk + 1];
  }
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) first_of_[chunk + 1] += first_of_[chunk];
  std::vector<int64_t> end(first_of_.begin(), first_of_.end() - 1);
  indices_.resize(uses_.size());
  for (size_t i = 0; i < uses_.size(); ++i) {
    indices_[end[uses_[i].chunk.value()]++] = static_cast<int64_t>(i);
  }
  // More than threads overtake one another by, and less than what is between two uses of most
  // chunks.
  slack_ = std::max<int64_t>(static_cast<int64_t>(uses_.size()) / 4, 1);
}

int64_t HostForesight::FirstFrom(ChunkId chunk, int64_t index) const {
  const auto begin = indices_.begin() + first_of_[chunk.value()];
  const auto end = indices_.begin() + first_of_[chunk.value() + 1];
  const auto round = static_cast<int64_t>(uses_.size());
  const int64_t in_round = (index % round + round) % round;  // Also of a negative one.
  const auto found = std::lower_bound(begin, end, in_round);
  return index - in_round + (found != end ? *found : round + *begin);
}

int64_t HostForesight::LastBefore(ChunkId chunk, int64_t index) const {
  const auto begin = indices_.begin() + first_of_[chunk.value()];
  const auto end = indices_.begin() + first_of_[chunk.value() + 1];
  const auto round = static_cast<int64_t>(uses_.size());
  const int64_t in_round = index % round;
  const auto found = std::lower_bound(begin, end, in_round);
  return index - in_round + (found != begin ? *(found - 1) : *(end - 1) - round);
}

int64_t HostForesight::TimeOf(int64_t index) const {
  const auto round = static_cast<int64_t>(uses_.size());
  return index / round * round_ns_ + uses_[index % round].at_ns;
}

void HostForesight::Used(ChunkId chunk) {
  if (next_[chunk.value()] == kNoUse) return;
  const int64_t later = FirstFrom(chunk, clock_);
  const int64_t earlier = LastBefore(chunk, clock_);
  const bool is_earlier =
      earlier >= std::max<int64_t>(clock_ - slack_, 0) && clock_ - earlier <= later - clock_;
  if (!is_earlier && later - clock_ > slack_) return;
  const int64_t made = is_earlier ? earlier : later;
  late_.erase(next_[chunk.value()]);
  next_[chunk.value()] = FirstFrom(chunk, made + 1);
  const auto round = static_cast<int64_t>(uses_.size());
  for (; clock_ <= made; ++clock_) {
    if (next_[uses_[clock_ % round].chunk.value()] == clock_) late_.insert(clock_);
  }
  late_.erase(late_.begin(), late_.lower_bound(clock_ - slack_));
}

int64_t HostForesight::NextUse(ChunkId chunk) const {
  const int64_t next = next_[chunk.value()];
  if (next == kNoUse || next >= clock_ - slack_) return next;
  return FirstFrom(chunk, clock_);
}

void HostForesight::Left(ChunkId chunk) {
  const int64_t next = NextUse(chunk);
  if (next == kNoUse) return;
  cursor_ = std::min(cursor_, next);
  // What is missing behind it has to begin so much earlier.
  quiet_until_ns_ = std::min(quiet_until_ns_, TimeOf(next)) - kHaste * read_ns_;
}

std::optional<ChunkId> HostForesight::NextToRead(absl::FunctionRef<bool(ChunkId)> is_missing) {
  if (empty()) return std::nullopt;
  const auto round = static_cast<int64_t>(uses_.size());
  const auto is_missing_use = [&](int64_t index) {
    const Use& use = uses_[index % round];
    return !use.overwrites && NextUse(use.chunk) == index && is_missing(use.chunk);
  };
  for (const int64_t index : late_) {
    if (is_missing_use(index)) return uses_[index % round].chunk;
  }
  for (cursor_ = std::max(cursor_, clock_); cursor_ <= urgent_until_; ++cursor_) {
    if (is_missing_use(cursor_)) return uses_[cursor_ % round].chunk;
  }
  const int64_t now_ns = TimeOf(clock_);
  if (now_ns < quiet_until_ns_ && clock_ < quiet_since_ + slack_) return std::nullopt;
  quiet_since_ = clock_;
  quiet_until_ns_ = std::numeric_limits<int64_t>::max();
  std::optional<int64_t> first;
  int64_t missing = 0;
  const int64_t end = std::min(clock_ + round, cursor_ + kMostUses);
  for (int64_t index = cursor_; index < end; ++index) {
    if (!is_missing_use(index)) continue;
    if (!first) first = cursor_ = index;
    const int64_t due_ns = TimeOf(index) - ++missing * kHaste * read_ns_;
    if (due_ns <= now_ns) {
      quiet_until_ns_ = 0;
      urgent_until_ = index;
      return uses_[*first % round].chunk;
    }
    quiet_until_ns_ = std::min(quiet_until_ns_, due_ns);
  }
  return std::nullopt;
}

}  // namespace gemini::policies
