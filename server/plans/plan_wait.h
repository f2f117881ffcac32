// SPDX-License-Identifier: Apache-2.0
// Lets a session cancel the plan or the stored trace that it waits for. It also holds the trace
// room, so that a cancelled request does not keep it open while it waits in the queue behind other
// plans.
// Thread: any.
#pragma once
#include <utility>

#include "absl/base/thread_annotations.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

class PlanWait {
 public:
  explicit PlanWait(UniqueFd room = UniqueFd()) : room_(std::move(room)) {}

  // The work begins: returns the room, which the caller closes.
  UniqueFd TakeRoom() {
    MutexLock lock(mutex_);
    return std::exchange(room_, UniqueFd());
  }
  // Nobody waits any more. Returns the room if the work has not begun.
  UniqueFd Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    return std::exchange(room_, UniqueFd());
  }
  bool cancelled() const {
    MutexLock lock(mutex_);
    return cancelled_;
  }

 private:
  mutable Mutex mutex_;
  UniqueFd room_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gemini::server
