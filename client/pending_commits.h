// SPDX-License-Identifier: Apache-2.0
// The bundles whose update was begun and is not committed yet, and which of them is updated next: one
// that somebody waits for, else the first in the order given.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "gemini/ids.h"

namespace gemini::client {

class PendingCommits {
 public:
  // Bundles have ids from 0 to num_bundles - 1; none is pending.
  explicit PendingCommits(int64_t num_bundles) : states_(num_bundles, State::kCommitted) {}

  // Makes bundles pending that are not; each once.
  void Expect(absl::Span<const BundleId> bundles);
  bool awaits(BundleId bundle) const { return states_[bundle.value()] != State::kCommitted; }
  int64_t count() const { return count_; }

  // Puts a bundle before all that nobody waits for. Nothing changes if it is taken or not pending.
  void Hurry(BundleId bundle);
  // Gives out the next one; each once. Nothing: all are taken.
  std::optional<BundleId> Take();
  // Makes those that were taken and are still pending available again, for another try; those that
  // nobody waits for go by their ids then.
  void ReturnAll();
  // The bundle is committed.
  void Done(BundleId bundle);

 private:
  enum class State : uint8_t { kCommitted, kWaiting, kHurried, kTaken };
  std::vector<State> states_;  // By BundleId.
  // Both hold bundles that were hurried or taken since, too: these are skipped.
  std::deque<BundleId> order_;
  std::deque<BundleId> hurried_;
  int64_t count_ = 0;
};

}  // namespace gemini::client
