// SPDX-License-Identifier: Apache-2.0
// Limits how long the end of a rank may take. At the end of a run ranks wait for each other once
// more: until nobody asks the first one's store, and until MPI or NCCL has said goodbye to all. The
// watchdog has stopped by then, so a rank that hangs would hold the others for ever.
// Thread: one of its own, which only waits.
#pragma once
#include <condition_variable>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "gemini/system/mutex.h"

namespace gemini::trainer {

class EndDeadline {
 public:
  // Calls `end` on its thread behind the limit, once, unless this is destroyed before.
  EndDeadline(absl::Duration limit, std::function<void()> end);
  EndDeadline(const EndDeadline&) = delete;
  EndDeadline& operator=(const EndDeadline&) = delete;
  // Waits for `end` if it is being called.
  ~EndDeadline();

 private:
  void Wait(absl::Duration limit, const std::function<void()>& end);

  Mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace gemini::trainer
