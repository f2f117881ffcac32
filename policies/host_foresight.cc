// SPDX-License-Identifier: Apache-2.0
#include "policies/host_foresight.h"

#include <algorithm>

namespace gemini::policies {

HostForesight::HostForesight(absl::Span<const PlannedHostUse> uses, int32_t space,
                             int64_t num_chunks)
    : first_use_(num_chunks + 1, 0), next_(num_chunks, kNoUse) {
  const auto is_own = [&](const PlannedHostUse& use) {
    return use.space == space && use.chunk.value() >= 0 && use.chunk.value() < num_chunks;
  };
  for (const PlannedHostUse& use : uses) {
    if (!is_own(use)) continue;
    ++first_use_[use.chunk.value() + 1];
    ++round_;
  }
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    first_use_[chunk + 1] += first_use_[chunk];
  }
  // More than threads overtake one another by, and less than what is between two uses of most chunks.
  slack_ = std::max<int64_t>(round_ / 4, 1);
  uses_.resize(round_);
  std::vector<int64_t> end(first_use_.begin(), first_use_.end() - 1);
  int64_t index = 0;
  for (const PlannedHostUse& use : uses) {
    if (!is_own(use)) continue;
    const int64_t chunk = use.chunk.value();
    if (next_[chunk] == kNoUse) next_[chunk] = index;
    uses_[end[chunk]++] = {index++, use.overwrites};
  }
}

absl::Span<const HostForesight::Use> HostForesight::UsesOf(ChunkId chunk) const {
  const int64_t first = first_use_[chunk.value()];
  return absl::MakeConstSpan(uses_).subspan(first, first_use_[chunk.value() + 1] - first);
}

int64_t HostForesight::FirstFrom(absl::Span<const Use> uses, int64_t index) const {
  // Floors: an index may be negative.
  const int64_t in_round = (index % round_ + round_) % round_;
  const int64_t round_begin = index - in_round;
  const auto found = std::ranges::lower_bound(uses, in_round, {}, &Use::index);
  return found != uses.end() ? round_begin + found->index
                             : round_begin + round_ + uses.front().index;
}

void HostForesight::Used(ChunkId chunk) {
  const absl::Span<const Use> uses = UsesOf(chunk);
  if (uses.empty()) return;
  const int64_t later = FirstFrom(uses, clock_);
  // The nearest before the clock: the last of those that are within the slack.
  int64_t earlier = kNoUse;
  for (int64_t use = FirstFrom(uses, clock_ - slack_); use < clock_;
       use = FirstFrom(uses, use + 1)) {
    earlier = use;
  }
  const bool is_earlier = earlier != kNoUse && earlier >= 0 && clock_ - earlier <= later - clock_;
  if (!is_earlier && later - clock_ > slack_) return;
  const int64_t made = is_earlier ? earlier : later;
  clock_ = std::max(clock_, made + 1);
  next_[chunk.value()] = FirstFrom(uses, made + 1);
}

int64_t HostForesight::NextUse(ChunkId chunk) const {
  const int64_t next = next_[chunk.value()];
  if (next == kNoUse || next >= clock_ - slack_) return next;
  return FirstFrom(UsesOf(chunk), clock_);
}

bool HostForesight::NeedsBytes(ChunkId chunk) const {
  const int64_t next = NextUse(chunk);
  if (next == kNoUse) return false;
  const absl::Span<const Use> uses = UsesOf(chunk);
  return !std::ranges::lower_bound(uses, next % round_, {}, &Use::index)->overwrites;
}

}  // namespace gemini::policies
