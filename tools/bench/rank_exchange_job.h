// SPDX-License-Identifier: Apache-2.0
// Times what the ranks of a job send each other in a training step, with nothing computed between
// one operation and the next.
// Units: bytes are those that one rank sends in one operation, as Communicator::sent counts them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/parallel/communicator.h"

namespace gemini::bench {

// Operations of one kind and one size. Messages (kSend) are those of a pipeline: one to the next
// rank and one to the rank before.
struct RankExchange {
  trainer::CollectiveKind kind = trainer::CollectiveKind::kAllGather;
  int64_t times = 0;  // At least 1.
  int64_t bytes = 0;  // 1 to 1 GiB.
  bool operator==(const RankExchange&) const = default;
};

// Reads words as "all-reduce:12:786432": a kind, how often, and bytes. INVALID_ARGUMENT: a word is
// none of these, or there is no word.
absl::StatusOr<std::vector<RankExchange>> ParseRankExchanges(
    absl::Span<const absl::string_view> words);

// COLLECTIVE over the job, which has at least two ranks: makes all exchanges in the group of all
// ranks, one operation after the other, `runs` times and once before, which is not timed. Sums are
// of fp32. Returns the seconds of each run, the mean of all ranks, the same in each. Errors: of the
// communicator; the job is over behind them.
absl::StatusOr<std::vector<double>> SecondsOfExchanges(trainer::Communicator& ranks,
                                                       absl::Span<const RankExchange> exchanges,
                                                       int runs);

// Runs as one rank of the job that a launcher started. The first rank prints a line of JSON with
// the median, the least and the most seconds. Returns the exit status: 0, or 1, which ends the job.
int RunRankExchange(absl::Span<const absl::string_view> words);

}  // namespace gemini::bench
