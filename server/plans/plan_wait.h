// SPDX-License-Identifier: Apache-2.0
// Lets a session cancel the plan or the stored trace that it waits for. It also holds the trace
// room, so that a cancelled request does not keep it open while it waits in the queue behind other
// plans, and says whose turn it is and whose the answer.
// Thread: any.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

class PlanWait {
 public:
  PlanWait(uint64_t session, pid_t process, UniqueFd room = UniqueFd())
      : session_(session), process_(process), room_(std::move(room)) {}

  uint64_t session() const { return session_; }
  pid_t process() const { return process_; }  // The session's.

  // The work begins: returns the room, which the caller closes. Returns no value, and it does not
  // begin, if nobody waits any more.
  std::optional<UniqueFd> Begin() {
    MutexLock lock(mutex_);
    if (cancelled_) return std::nullopt;
    begun_ = true;
    return std::exchange(room_, UniqueFd());
  }
  // Nobody waits any more. Returns the room if the work has not begun.
  UniqueFd Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    return std::exchange(room_, UniqueFd());
  }
  // The same, but only if the work has not begun; otherwise returns no value.
  std::optional<UniqueFd> CancelUnlessBegun() {
    MutexLock lock(mutex_);
    if (begun_) return std::nullopt;
    cancelled_ = true;
    return std::exchange(room_, UniqueFd());
  }
  bool cancelled() const {
    MutexLock lock(mutex_);
    return cancelled_;
  }

 private:
  const uint64_t session_;
  const pid_t process_;
  mutable Mutex mutex_;
  UniqueFd room_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gemini::server
