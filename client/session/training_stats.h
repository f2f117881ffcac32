// SPDX-License-Identifier: Apache-2.0
// Counts what a session's training holds in memory, has moved and has waited for.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "client/plan/phase_tracker.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

struct TrainingStats {
  int64_t device_budget_bytes = 0;   // 0: there is no budget.
  int64_t device_peak_bytes = 0;     // Largest sum of chunks and non-model data since ResetPeaks.
  int64_t non_model_peak_bytes = 0;  // Torch's allocations alone, at their own peak since then.
  int64_t pinned_peak_bytes = 0;     // The floor seen: the most that operators pinned at one time.
  int64_t host_bytes = 0;            // HOST of the lease that spaces have.
  int64_t nvme_bytes = 0;
  int64_t registered_host_bytes = 0;  // HOST that is registered with a GPU's driver by now.
  std::string registration_error;     // Why no more will be registered; empty if nothing failed.
  int64_t fetch_bytes = 0;            // HOST to DEVICE, ever.
  int64_t evict_bytes = 0;            // DEVICE to HOST, ever.
  double stall_seconds = 0;           // How long operators waited, ever.
  std::array<double, kNumStallCauses> stall_seconds_by_cause = {};  // Its parts, by StallCause.
  PhaseStats phases;
  int64_t requests_given_up = 0;      // Requests that the server did not answer in time, ever.
  int64_t operators = 0;              // Operators that the hook has seen, ever.
  int64_t operators_with_chunks = 0;  // Those that pinned at least one chunk.

  // Returns a copy in which counts of what was moved, waited for and planned start from `before`.
  TrainingStats Since(const TrainingStats& before) const;
};

}  // namespace gemini::client
