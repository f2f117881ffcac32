// SPDX-License-Identifier: Apache-2.0
// Defines the question and the answer of a forecast of ranks by dry runs.
// Units: bytes, seconds.
#pragma once
#include <cstdint>

#include "policies/mesh/collective_cost.h"
#include "policies/pipeline/step_playback.h"
#include "trainer/forecast/named_trace.h"
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// What a rank achieves on a processor of its own, and how many of these there are.
struct RankStepRates {
  ComputeRate compute;
  policies::RankLink link;
  double sum_bytes_per_second = 0;  // Of what others sent, that it adds up. > 0.
  // As a daemon measures them at its start (server/plans/calibration.h). Both > 0.
  double copy_bytes_per_second = 0;
  double device_update_elements_per_second = 0;
  double update_elements_per_second = 0;  // In HOST, as the client updates. > 0.
  double processors = 1;
};

struct RanksForecast {
  policies::PlayedRank last;  // The rank that takes longest; its end is the step's time.
  SentByKind sent;            // By the first rank.
  int64_t most_sent_bytes = 0;
  int64_t host_bytes = 0;         // Of the rank that asks for most,
  int64_t device_peak_bytes = 0;  // and of the one that takes most.
};

}  // namespace gemini::trainer
