// SPDX-License-Identifier: Apache-2.0
// Finds rounds in a session's timeline: a round is the operators at positions 0, 1, 2, … one after
// another, up to the next operator at position 0.
// Thread: any.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/shm/timeline_shm.h"

namespace gemini::tools {

struct RoundsOfTimeline {
  std::vector<TimelineEvent> events = {};  // All that began in these rounds, by begin_ns.
  int64_t num_rounds = 0;
  int64_t num_positions = 0;  // Operators of each.
};

// Returns the last rounds that are there from beginning to end, `most` (> 0) of them or what there
// is, and what lies between them. Rounds of `num_positions` operators only; 0: as many as the
// longest has, for a training step is longer than an evaluation. NOT_FOUND: there is none; says
// what there is.
absl::StatusOr<RoundsOfTimeline> LastRounds(std::vector<TimelineEvent> events,
                                            int64_t num_positions, int64_t most);

}  // namespace gemini::tools
