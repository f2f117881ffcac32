// SPDX-License-Identifier: Apache-2.0
// Measures what the ranks of a job compute and exchange a second (tools/rank_rates.h), all of them
// at the same time, with one thread each, so that what they share of a machine is shared as in
// training.
#pragma once
#include "absl/status/statusor.h"
#include "tools/rank_rates.h"
#include "trainer/parallel/communicator.h"

namespace gemini::bench {

// COLLECTIVE over the job, which has at least two ranks. Blocks for some seconds and needs some 160
// MiB. Returns the mean of all ranks, the same in each. Errors: of the communicator; the job is
// over behind them.
absl::StatusOr<tools::RankRates> MeasureRankRates(trainer::Communicator& ranks);

// Runs as one rank of the job that a launcher started: measures, and prints the line if it is the
// first rank. Returns the exit status: 0, or 1, which ends the job.
int RunRankRates();

}  // namespace gemini::bench
