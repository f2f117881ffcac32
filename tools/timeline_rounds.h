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

// Returns the last complete rounds, `most` (> 0) of them or as many as there are, and what lies
// between them. Only rounds of `num_positions` operators count; 0 stands for as many as the longest
// has, because a training step is longer than an evaluation. NOT_FOUND: there is none; the message
// says what there is.
absl::StatusOr<RoundsOfTimeline> LastRounds(std::vector<TimelineEvent> events,
                                            int64_t num_positions, int64_t most);

}  // namespace gemini::tools
