// SPDX-License-Identifier: Apache-2.0
// A plan that a session has asked for and does not have yet: the trace that it is to be made of,
// and whether anybody still waits for it.
// Thread: any; the session's owner cancels, the plans' thread takes the trace and asks meanwhile.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

#include "gemini/mutex.h"
#include "gemini/unique_fd.h"

namespace gemini::server {

class PendingPlan {
 public:
  // `room` is a memfd of ours with a trace of `room_bytes` bytes that the client wrote.
  PendingPlan(UniqueFd room, int64_t room_bytes)
      : room_bytes_(room_bytes), room_(std::move(room)) {}

  // Nobody waits any more: the plan is not begun, or ends at its next interrupt. Returns the room
  // if it was not taken, so that its memory does not stay behind the plans of others.
  UniqueFd Cancel() {
    cancelled_.store(true, std::memory_order_relaxed);
    return TakeRoom();
  }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Returns the room; none once it was taken or cancelled.
  UniqueFd TakeRoom() {
    MutexLock lock(mutex_);
    return std::move(room_);
  }
  int64_t room_bytes() const { return room_bytes_; }

 private:
  const int64_t room_bytes_;
  std::atomic<bool> cancelled_ = false;
  Mutex mutex_;
  UniqueFd room_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemini::server
