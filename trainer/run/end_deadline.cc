// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/end_deadline.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace gemini::trainer {

EndDeadline::EndDeadline(absl::Duration limit, std::function<void()> end)
    : thread_([this, limit, end = std::move(end)] { Wait(limit, end); }) {}

EndDeadline::~EndDeadline() {
  {
    MutexLock lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void EndDeadline::Wait(absl::Duration limit, const std::function<void()>& end) {
  ::pthread_setname_np(::pthread_self(), "gemini-end");
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  {
    MutexLock lock(mutex_);
    while (!is_over_ && std::chrono::steady_clock::now() < deadline) {
      mutex_.WaitUntil(changed_, deadline);
    }
    if (is_over_) return;
  }
  end();
}

}  // namespace gemini::trainer
