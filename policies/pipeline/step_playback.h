// SPDX-License-Identifier: Apache-2.0
// Plays what the ranks of one machine do in a step against each other in time: when each computes,
// what it exchanges, and who waits for whom.
// Ranks: each does its actions one after another. What it begins runs beside them, in the order in
//        which it was begun: one collective at a time, and nothing begins that stands behind a
//        collective that has not begun. Messages are left to themselves.
// Exchanges: a collective runs from when all of its ranks have begun it, a message from when both
//        have. It takes its latency, in which processors do nothing, and then work of each rank.
//        The k-th collective of a rank among the same ranks is the k-th of each of them; so are
//        messages from one rank to another with one tag.
// Processors: whoever computes, or works for an exchange, has an equal part of those that there are
//        and never more than one. A rank that waits leaves its part to the others.
// Units:  seconds.
// Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gemini::policies {

// What a rank exchanges.
struct PlayedExchange {
  enum class Kind : uint8_t { kCollective, kSend, kReceive };
  Kind kind = Kind::kCollective;
  std::vector<int64_t> ranks;  // All that take part, ascending; of a message the other one alone.
  int64_t group = 0;           // Exchanges of several groups never meet.
  int64_t tag = 0;             // Of a message.
  double latency_seconds = 0;  // Of a message, what its receiver says counts.
  double work_seconds = 0;     // Of this rank, on a processor of its own.
  std::string site;            // For messages to people.
};

struct RankAction {
  enum class Kind : uint8_t { kCompute, kBegin, kAwait };
  Kind kind = Kind::kCompute;
  double seconds = 0;    // Of kCompute, on a processor of its own.
  int32_t exchange = 0;  // Of the others: an index in RankActions::exchanges.
};

// What a rank does in a step. Each exchange is begun once, and awaited behind that or never.
struct RankActions {
  std::vector<PlayedExchange> exchanges;
  std::vector<RankAction> actions;
};

// Where the time of a rank goes.
struct PlayedRank {
  double end_seconds = 0;        // The sum of the others.
  double computing_seconds = 0;  // As if it had a processor of its own.
  double sharing_seconds = 0;    // What computing takes longer because others compute, too.
  double exchange_seconds = 0;   // It waits for an exchange that runs,
  double idle_seconds = 0;       // and for other ranks to begin one.
};

// Returns what becomes of each rank on so many processors, > 0. INVALID_ARGUMENT: an index, a rank
// or a time is none, an exchange is awaited that was not begun, or ranks wait for each other for
// ever: the message names them and what they wait for.
absl::StatusOr<std::vector<PlayedRank>> PlayStep(absl::Span<const RankActions> ranks,
                                                 double processors);

}  // namespace gemini::policies
