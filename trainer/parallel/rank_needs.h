// SPDX-License-Identifier: Apache-2.0
// Finds how much of the machine's memory the neediest ranks of a job need.
// Units: bytes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/parallel/rank_agreement.h"

namespace gemini::trainer {

struct RankNeeds {
  int64_t device_peak_bytes = 0;
  int64_t host_bytes = 0;
};

// COLLECTIVE over the job. Returns the most that any rank has, of either.
inline absl::StatusOr<RankNeeds> GatherNeeds(const RankAgreement& ranks, const RankNeeds& own) {
  const absl::StatusOr<std::vector<RankNeeds>> all = ranks.Gather(own, "needs");
  if (!all.ok()) return all.status();
  RankNeeds most;
  for (const RankNeeds& one : *all) {
    most.device_peak_bytes = std::max(most.device_peak_bytes, one.device_peak_bytes);
    most.host_bytes = std::max(most.host_bytes, one.host_bytes);
  }
  return most;
}

}  // namespace gemini::trainer
