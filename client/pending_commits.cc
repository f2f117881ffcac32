// SPDX-License-Identifier: Apache-2.0
#include "client/pending_commits.h"

#include "gemini/check.h"

namespace gemini::client {

void PendingCommits::Expect(absl::Span<const BundleId> bundles) {
  for (const BundleId bundle : bundles) {
    GEMINI_CHECK(!awaits(bundle));
    states_[bundle.value()] = State::kWaiting;
    order_.push_back(bundle);
  }
  count_ += static_cast<int64_t>(bundles.size());
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
      return bundle;
    }
    return std::nullopt;
  };
  if (const std::optional<BundleId> bundle = take_from(hurried_, State::kHurried)) return bundle;
  return take_from(order_, State::kWaiting);
}

void PendingCommits::ReturnAll() {
  order_.clear();
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::kTaken) states_[i] = State::kWaiting;
    if (states_[i] == State::kWaiting) order_.push_back(BundleId(static_cast<int64_t>(i)));
  }
}

void PendingCommits::Done(BundleId bundle) {
  GEMINI_CHECK(awaits(bundle));
  states_[bundle.value()] = State::kCommitted;
  --count_;
}

}  // namespace gemini::client
