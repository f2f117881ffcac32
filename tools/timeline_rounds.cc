// SPDX-License-Identifier: Apache-2.0
#include "tools/timeline_rounds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gemini::tools {
namespace {

struct Round {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t num_positions = 0;
  bool whole = false;  // No position is missing.
  bool ended = false;  // Another one begins behind it.
};

int64_t StartOf(const TimelineEvent& event) { return event.begin_ns - event.stall_ns; }

// `events` by StartOf. What comes before the first position 0 belongs to a round that is gone.
std::vector<Round> RoundsOf(const std::vector<TimelineEvent>& events) {
  std::vector<Round> rounds;
  for (const TimelineEvent& event : events) {
    if (event.lane != TimelineLane::kOperator) continue;
    if (event.subject == 0) {
      if (!rounds.empty()) rounds.back().ended = true;
      rounds.push_back({.begin_ns = StartOf(event), .whole = true});
    }
    if (rounds.empty()) continue;
    Round& round = rounds.back();
    round.whole &= event.subject == round.num_positions;
    round.end_ns = event.end_ns;
    ++round.num_positions;
  }
  return rounds;
}

}  // namespace

absl::StatusOr<RoundsOfTimeline> LastRounds(std::vector<TimelineEvent> events,
                                            int64_t num_positions, int64_t most) {
  std::stable_sort(
      events.begin(), events.end(),
      [](const TimelineEvent& a, const TimelineEvent& b) { return StartOf(a) < StartOf(b); });
  const std::vector<Round> rounds = RoundsOf(events);
  RoundsOfTimeline found = {.num_positions = num_positions};
  if (num_positions == 0) {
    for (const Round& round : rounds) {
      if (!round.whole || !round.ended) continue;
      found.num_positions = std::max(found.num_positions, round.num_positions);
    }
  }
  int64_t begin_ns = 0, end_ns = 0;
  for (auto round = rounds.rbegin(); round != rounds.rend() && found.num_rounds < most; ++round) {
    // The one under way is known to be over when it is as long as it is to be.
    if (!round->whole || !(round->ended || num_positions > 0)) continue;
    if (round->num_positions != found.num_positions) continue;
    begin_ns = round->begin_ns;
    if (found.num_rounds++ == 0) end_ns = round->end_ns;
  }
  if (found.num_rounds == 0) {
    return absl::NotFoundError(absl::StrCat(
        "the timeline has no complete round",
        num_positions > 0 ? absl::StrCat(" of ", num_positions, " operators") : "", ": its ",
        events.size(), " events begin ", rounds.size(), rounds.size() == 1 ? " round" : " rounds",
        ", the last one with ", rounds.empty() ? 0 : rounds.back().num_positions, " operators"));
  }
  for (const TimelineEvent& event : events) {
    if (StartOf(event) >= begin_ns && StartOf(event) < end_ns) found.events.push_back(event);
  }
  return found;
}

}  // namespace gemini::tools
