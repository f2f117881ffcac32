// SPDX-License-Identifier: Apache-2.0
// The bundles whose update was begun and is not committed yet, and which of them is updated next:
// one that somebody waits for; else one whose gradient was late and has arrived; else the first in
// the order given whose gradient is there; else the first that still awaits its gradient.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "gemini/ids.h"

namespace gemini::client {

class PendingCommits {
 public:
  // Bundles have ids from 0 to num_bundles - 1; none is pending.
  explicit PendingCommits(int64_t num_bundles)
      : states_(num_bundles, State::kCommitted), is_late_(num_bundles, false) {}

  // Makes bundles pending that are not; each once. `late`, each once of `bundles`, await their
  // gradients.
  void Expect(absl::Span<const BundleId> bundles, absl::Span<const BundleId> late = {});
  bool awaits(BundleId bundle) const { return states_[bundle.value()] != State::kCommitted; }
  bool awaits_gradient(BundleId bundle) const { return is_late_[bundle.value()]; }
  int64_t count() const { return count_; }
  int64_t late_count() const { return late_count_; }  // Of them: those that await their gradients.

  // The gradient has arrived: nothing changes if the bundle awaits none. Its turn was put off for
  // it alone, so the bundle goes before all that nobody waits for; several go as they arrived.
  void GradientArrived(BundleId bundle);
  // Puts a bundle before all that nobody waits for. Nothing changes if it is taken or not pending.
  void Hurry(BundleId bundle);
  // Gives out the next one; each once. Nothing: all are taken.
  std::optional<BundleId> Take();
  // Shows the one that was taken last, if it is pending still, and those to come, in the order in
  // which Take gives them if nothing changes meanwhile, until `look` returns false.
  void LookAhead(absl::FunctionRef<bool(BundleId)> look) const;
  // Makes those that were taken and are still pending available again, for another try; those that
  // nobody waits for go by their ids then, late ones behind the others.
  void ReturnAll();
  // The bundle is committed.
  void Done(BundleId bundle);

 private:
  enum class State : uint8_t { kCommitted, kWaiting, kHurried, kTaken };
  std::vector<State> states_;  // By BundleId.
  std::vector<bool> is_late_;  // By BundleId: pending, and awaits its gradient.
  // All hold bundles that were hurried, taken or committed since, too: these are skipped.
  std::deque<BundleId> hurried_;
  std::deque<BundleId> arrived_;  // Were late.
  std::deque<BundleId> order_;
  std::deque<BundleId> late_;
  BundleId taken_last_;
  int64_t count_ = 0;
  int64_t late_count_ = 0;
};

}  // namespace gemini::client
