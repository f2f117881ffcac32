// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/waiting_fetches.h"

#include <algorithm>

namespace gemini::policies {

void WaitingFetches::Push(const WaitingFetch& fetch) {
  coming_.push(fetch);
  is_waiting_[fetch.range] = true;
}

int64_t WaitingFetches::NextBeginNs(int64_t free_ns) const {
  return there_.empty() ? std::max(free_ns, coming_.top().earliest.ns) : free_ns;
}

WaitingFetch WaitingFetches::Pop(int64_t free_ns) {
  for (; !coming_.empty() && coming_.top().earliest.ns <= free_ns; coming_.pop()) {
    there_.push(coming_.top());
  }
  const WaitingFetch next = there_.empty() ? coming_.top() : there_.top();
  if (there_.empty()) {
    coming_.pop();
  } else {
    there_.pop();
  }
  is_waiting_[next.range] = false;
  return next;
}

}  // namespace gemini::policies
