// SPDX-License-Identifier: Apache-2.0
// Names the one thread that owns a piece of metadata. It is a lock to clang's analysis and a
// thread-id comparison at run time. Guard members with ABSL_GUARDED_BY(owner_) and begin methods
// with owner_.AssertHere().
#pragma once
#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "gemini/system/check.h"

namespace gemini {

class ABSL_LOCKABLE OwnerThread {
 public:
  // The constructing thread is the owner until Adopt.
  OwnerThread() : id_(std::this_thread::get_id()) {}
  OwnerThread(const OwnerThread&) = delete;
  OwnerThread& operator=(const OwnerThread&) = delete;

  // Makes the calling thread the owner. The former owner must be done with the guarded data, and
  // the hand-over must be ordered (starting the new thread is).
  void Adopt() { id_.store(std::this_thread::get_id(), std::memory_order_relaxed); }

  // Aborts unless the calling thread is the owner.
  void AssertHere() const ABSL_ASSERT_EXCLUSIVE_LOCK() {
    GEMINI_CHECK(id_.load(std::memory_order_relaxed) == std::this_thread::get_id());
  }

 private:
  std::atomic<std::thread::id> id_;
};

}  // namespace gemini
