// SPDX-License-Identifier: Apache-2.0
// Wraps std::mutex with the annotations that clang's thread-safety analysis checks. It replaces
// absl::Mutex because the distribution's Abseil is built without ThreadSanitizer, which then
// reports races where there are none.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace gemini {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  // Releases the lock, waits for a notification and locks again. The wake-up may be spurious, so
  // check the condition again.
  void WaitFor(std::condition_variable& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    condition.wait(lock);
    lock.release();
  }
  // As WaitFor, but until `deadline` at the latest.
  void WaitUntil(std::condition_variable& condition, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    condition.wait_until(lock, deadline);
    lock.release();
  }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace gemini
