// SPDX-License-Identifier: Apache-2.0
#include "client/session/training_stats.h"

namespace gemini::client {

TrainingStats TrainingStats::Since(const TrainingStats& before) const {
  TrainingStats since = *this;
  since.fetch_bytes -= before.fetch_bytes;
  since.evict_bytes -= before.evict_bytes;
  since.stall_seconds -= before.stall_seconds;
  for (int i = 0; i < kNumStallCauses; ++i) {
    since.stall_seconds_by_cause[i] -= before.stall_seconds_by_cause[i];
  }
  since.phases.rounds -= before.phases.rounds;
  since.phases.planned_rounds -= before.phases.planned_rounds;
  for (int i = 0; i < kNumDivergences; ++i) {
    since.phases.divergences[i] -= before.phases.divergences[i];
  }
  return since;
}

}  // namespace gemini::client
