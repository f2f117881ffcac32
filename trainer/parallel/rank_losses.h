// SPDX-License-Identifier: Apache-2.0
// Exchanges what each rank tells all others about its part of a step, before the update.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_verdict.h"
#include "trainer/tasks/loss_values.h"

namespace gemini::trainer {

struct RankLosses {
  RankVerdict verdict;
  LossSum loss;
  int64_t signal = 0;
};

// COLLECTIVE over the job. Returns what each rank has, by rank.
inline absl::StatusOr<std::vector<RankLosses>> GatherLosses(const RankAgreement& ranks,
                                                            const RankLosses& own) {
  return ranks.Gather(own, "losses");
}

}  // namespace gemini::trainer
