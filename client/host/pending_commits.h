// SPDX-License-Identifier: Apache-2.0
// Keeps the bundles whose update was begun and is not committed yet, and decides which of them is
// updated next: one that a thread waits for; else one whose gradient was late and has arrived; else
// the first, in the order given, whose gradient was never late; else the first that still awaits
// its gradient.
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

  // Makes `bundles`, of which none is pending and none is named twice, pending. Those in `late`, a
  // subset, await their gradients.
  void Expect(absl::Span<const BundleId> bundles, absl::Span<const BundleId> late = {});
  bool awaits(BundleId bundle) const { return states_[bundle.value()] != State::kCommitted; }
  bool awaits_gradient(BundleId bundle) const { return is_late_[bundle.value()]; }
  int64_t count() const { return count_; }
  int64_t late_count() const { return late_count_; }  // Those that await their gradients.

  // Says that the bundle's gradient has arrived; does nothing if it awaits none. Only the gradient
  // delayed its turn, so the bundle now precedes all that nobody waits for. Several such bundles
  // are taken in the order of arrival.
  void GradientArrived(BundleId bundle);
  // Puts a bundle before all that nobody waits for. Nothing changes if it is taken or not pending.
  void Hurry(BundleId bundle);
  // Takes the next bundle to update. Returns no value if all are taken.
  std::optional<BundleId> Take();
  // Calls `look` with the bundle that was taken last, if it is still pending, and then with those
  // to come, in the order in which Take returns them if nothing changes meanwhile, until `look`
  // returns false.
  void LookAhead(absl::FunctionRef<bool(BundleId)> look) const;
  // Makes the bundles that were taken and are still pending available again, for another try. Those
  // that nobody waits for are then taken in the order of their ids, late ones after the others.
  void ReturnAll();
  // Says that the bundle, which is pending, is committed.
  void Done(BundleId bundle);

 private:
  enum class State : uint8_t { kCommitted, kWaiting, kHurried, kTaken };
  std::vector<State> states_;  // By BundleId.
  std::vector<bool> is_late_;  // By BundleId: pending, and awaits its gradient.
  // These queues also contain bundles that were hurried, taken or committed since; Take skips them.
  std::deque<BundleId> hurried_;
  std::deque<BundleId> arrived_;  // Their gradients were late.
  std::deque<BundleId> order_;
  std::deque<BundleId> late_;
  BundleId taken_last_;
  int64_t count_ = 0;
  int64_t late_count_ = 0;
};

}  // namespace gemini::client
