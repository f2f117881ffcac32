// SPDX-License-Identifier: Apache-2.0
// Holds the queue of a simulated link: the fetches that may begin and have not begun. When the link
// is idle, it takes the one needed first among those whose slots and bytes are ready. If none is
// ready, it takes the first that becomes ready.
// Units: nanoseconds since the first round's beginning; ranges and fetches by index.
#pragma once
#include <cstdint>
#include <queue>
#include <vector>

#include "policies/simulator/simulated_time.h"

namespace gemini::policies {

struct WaitingFetch {
  Moment earliest;        // When its slots and its bytes are there.
  int64_t needed_at = 0;  // The position, counted from the first round.
  int32_t fetch = 0;      // Of the plan.
  int32_t range = 0;
};

class WaitingFetches {
 public:
  explicit WaitingFetches(int64_t num_ranges) : is_waiting_(num_ranges) {}

  bool empty() const { return there_.empty() && coming_.empty(); }
  bool IsWaiting(int32_t range) const { return is_waiting_[range]; }
  void Push(const WaitingFetch& fetch);
  // When a link that is free at `free_ns` turns to the next one; there is one.
  int64_t NextBeginNs(int64_t free_ns) const;
  // The one that such a link turns to; there is one.
  WaitingFetch Pop(int64_t free_ns);

 private:
  struct NeededLater {
    bool operator()(const WaitingFetch& a, const WaitingFetch& b) const {
      return a.needed_at != b.needed_at ? a.needed_at > b.needed_at : a.fetch > b.fetch;
    }
  };
  struct ThereLater {
    bool operator()(const WaitingFetch& a, const WaitingFetch& b) const {
      return a.earliest.ns != b.earliest.ns ? a.earliest.ns > b.earliest.ns : NeededLater()(a, b);
    }
  };
  template <typename Later>
  using Queue = std::priority_queue<WaitingFetch, std::vector<WaitingFetch>, Later>;

  Queue<NeededLater> there_;
  Queue<ThereLater> coming_;
  std::vector<bool> is_waiting_;  // By range.
};

}  // namespace gemini::policies
