// SPDX-License-Identifier: Apache-2.0
// Encodes what gemini-trace reads and writes about the steps of several ranks (ranks_forecast.h): a
// line of JSON for a request, and one for its reply. They stand beside those of trace_exchange.h,
// whose requests have no key "ranks".
// Errors: INVALID_ARGUMENT for what is no request or no reply; the message says what is wrong.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config/run_config.h"
#include "trainer/families/task_choice.h"
#include "trainer/forecast/ranks_forecast.h"

namespace gemini::trainer {

struct RanksRequest {
  int64_t num_ranks = 0;
  // DEVICE, the length of sequences and the threads of an operator are numbers.
  RunConfig run = {};
  TaskWish task = {};
  RankStepRates rates = {};
};

// Whether a line is such a request, right or wrong.
bool IsRanksRequest(absl::string_view line);

// Without the line's end.
std::string EncodeRanksRequest(const RanksRequest& request);
absl::StatusOr<RanksRequest> ParseRanksRequest(absl::string_view line);

// With the line's end.
std::string EncodeRanksReply(const RanksForecast& forecast);
// `line` has no line's end. The error may also be that with which the request was refused.
// FAILED_PRECONDITION: it is of another version of Gemini.
absl::StatusOr<RanksForecast> ParseRanksReply(absl::string_view line);

}  // namespace gemini::trainer
