// SPDX-License-Identifier: Apache-2.0
// Defines a moment in the order of operators, when one begins or has ended. Plans say with it when
// a move may begin, and a client says with it how far its operators are.
// Units: operators by number, from 0; of a round (gemini/plan/trace.h) or since the start of time.
#pragma once
#include <compare>
#include <cstdint>

#include "gemini/plan/plan.h"

namespace gemini {

struct Gate {
  int64_t value = 0;  // 2 n + 1 for the begin of operator n, 2 n + 2 for its end.

  static constexpr Gate BeginOf(int64_t op) { return {2 * op + 1}; }
  // -1: of all operators before the first.
  static constexpr Gate EndOf(int64_t op) { return {2 * op + 2}; }
  // Returns the same moment of a round that begins so many operators later.
  constexpr Gate InRoundAt(int64_t first) const { return {2 * first + value}; }
  auto operator<=>(const Gate&) const = default;
};

// Return when the move may begin, in its round.
constexpr Gate GateOf(const PlannedFetch& fetch) {
  // On demand, it begins with its operator.
  return fetch.after < fetch.needed_at ? Gate::EndOf(fetch.after) : Gate::BeginOf(fetch.after);
}
constexpr Gate GateOf(const PlannedEviction& eviction) { return Gate::EndOf(eviction.after); }

}  // namespace gemini
