// SPDX-License-Identifier: Apache-2.0
// Stores what each rank of one machine computes and exchanges in a second while all of them do the
// same: `gemini-bench ranks` measures it, and `memstat plan --measured` takes it in place of the
// table of GPUs. A file has a line of JSON for each number of ranks that was measured.
// Threads: an operator of a rank had kThreadsOfRates.
// Sharing: where there are more ranks than processors, the rates are those of a rank that shares
//          its processor with the others. Formulas take them as they are, as if all ranks always
//          worked. A dry run counts who works when, and takes RatesOfProcessor, so that nothing is
//          shared twice: what it costs that ranks take turns is still in these.
// Units:  bytes, seconds, nanoseconds; of one rank.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "policies/mesh/collective_cost.h"
#include "trainer/forecast/named_trace.h"
#include "trainer/forecast/ranks_forecast.h"

namespace gemini::tools {

inline constexpr int64_t kThreadsOfRates = 1;

struct RankRates {
  int64_t num_ranks = 0;
  int64_t num_processors = 0;    // That the ranks had.
  trainer::ComputeRate compute;  // In fp32. Products are those of a training step.
  policies::RankLink link;       // Of rings through all ranks.
  double sum_bytes_per_second = 0;
  double copy_bytes_per_second = 0;              // Between HOST and DEVICE.
  double update_elements_per_second = 0;         // As AdamW updates them in HOST,
  double device_update_elements_per_second = 0;  // and on DEVICE.
};

// Returns what a rank achieves on a processor of its own. Latencies stay as they are.
trainer::RankStepRates RatesOfProcessor(const RankRates& rates);

// Returns the line without its end.
std::string ToJson(const RankRates& rates);

// Returns what the file at `path` says of so many ranks. NOT_FOUND: there is no such file, or it
// has other numbers of ranks alone, which the message names. INVALID_ARGUMENT: a line is none of
// ToJson's, or a rate is not above 0; the message has its number.
absl::StatusOr<RankRates> ReadRankRates(const std::string& path, int64_t num_ranks);

}  // namespace gemini::tools
