// SPDX-License-Identifier: Apache-2.0
// Encodes what a rank tells the watchdogs of the others (rank_watchdog.h), as a line of text. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gemini::trainer {

struct RankReport {
  // In place of a rank whose message is awaited: there is none, or a collective is.
  static constexpr int64_t kNone = -1;
  static constexpr int64_t kCollective = -2;

  int64_t beat = 0;                      // Counts the rank's reports.
  int64_t awaited = kNone;               // The rank whose message it waits for.
  int64_t num_messages = 0;              // As Communicator::Begun.
  std::vector<int64_t> num_issued = {};  // Collectives that it has begun, by group.

  bool operator==(const RankReport&) const = default;
};

std::string ToText(const RankReport& report);
// Reads what another rank of `num_ranks` may have written. A text that is too long, holds something
// that is no number, or numbers that no rank has, is a report of nothing: that of a rank that has
// begun nothing and waits for nobody.
RankReport ParseRankReport(absl::string_view text, int64_t num_ranks);

}  // namespace gemini::trainer
