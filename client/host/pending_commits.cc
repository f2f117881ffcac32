// SPDX-License-Identifier: Apache-2.0
#include "client/host/pending_commits.h"

#include <algorithm>

#include "gemini/system/check.h"

namespace gemini::client {

void PendingCommits::Expect(absl::Span<const BundleId> bundles, absl::Span<const BundleId> late) {
  for (const BundleId bundle : bundles) {
    GEMINI_CHECK(!awaits(bundle));
    states_[bundle.value()] = State::kWaiting;
  }
  for (const BundleId bundle : late) {
    GEMINI_CHECK(awaits(bundle) && !awaits_gradient(bundle));
    is_late_[bundle.value()] = true;
  }
  for (const BundleId bundle : bundles) {
    (awaits_gradient(bundle) ? late_ : order_).push_back(bundle);
  }
  count_ += static_cast<int64_t>(bundles.size());
  late_count_ += static_cast<int64_t>(late.size());
}

void PendingCommits::GradientArrived(BundleId bundle) {
  if (!awaits_gradient(bundle)) return;
  is_late_[bundle.value()] = false;
  --late_count_;
  arrived_.push_back(bundle);
}

void PendingCommits::Hurry(BundleId bundle) {
  State& state = states_[bundle.value()];
  if (state != State::kWaiting) return;
  state = State::kHurried;
  hurried_.push_back(bundle);
}

std::optional<BundleId> PendingCommits::Take() {
  const auto take_from = [this](std::deque<BundleId>& queue,
                                State expected) -> std::optional<BundleId> {
    while (!queue.empty()) {
      const BundleId bundle = queue.front();
      queue.pop_front();
      if (states_[bundle.value()] != expected) continue;
      states_[bundle.value()] = State::kTaken;
      taken_last_ = bundle;
      return bundle;
    }
    return std::nullopt;
  };
  if (const std::optional<BundleId> bundle = take_from(hurried_, State::kHurried)) return bundle;
  for (std::deque<BundleId>* const queue : {&arrived_, &order_, &late_}) {
    if (const std::optional<BundleId> bundle = take_from(*queue, State::kWaiting)) return bundle;
  }
  return std::nullopt;
}

void PendingCommits::LookAhead(absl::FunctionRef<bool(BundleId)> look) const {
  const auto show = [&](const std::deque<BundleId>& queue, State expected, bool late) {
    return std::ranges::all_of(queue, [&](BundleId bundle) {
      // Those that have arrived are among the late ones still.
      if (states_[bundle.value()] != expected) return true;
      return (late && !is_late_[bundle.value()]) || look(bundle);
    });
  };
  const bool is_taken = taken_last_ != BundleId() && states_[taken_last_.value()] == State::kTaken;
  if (is_taken && !look(taken_last_)) return;
  if (!show(hurried_, State::kHurried, false)) return;
  for (const std::deque<BundleId>* const queue : {&arrived_, &order_, &late_}) {
    if (!show(*queue, State::kWaiting, queue == &late_)) return;
  }
}

void PendingCommits::ReturnAll() {
  for (std::deque<BundleId>* const queue : {&arrived_, &order_, &late_}) queue->clear();
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::kTaken) states_[i] = State::kWaiting;
    if (states_[i] != State::kWaiting) continue;
    (is_late_[i] ? late_ : order_).push_back(BundleId(static_cast<int64_t>(i)));
  }
}

void PendingCommits::Done(BundleId bundle) {
  GEMINI_CHECK(awaits(bundle));
  states_[bundle.value()] = State::kCommitted;
  --count_;
  if (awaits_gradient(bundle)) --late_count_;
  is_late_[bundle.value()] = false;
  if (count_ > 0) return;
  // What is left was taken another way, and must not come before its turn when it is expected
  // again.
  for (std::deque<BundleId>* const queue : {&hurried_, &arrived_, &order_, &late_}) queue->clear();
}

}  // namespace gemini::client
