// SPDX-License-Identifier: Apache-2.0
// Guards a kind of work that waits, for the server or for copies under way, and that one thread at
// a time does without the lock that guards everything else of its owner: other threads go on
// meanwhile.
// Thread: any. `mutex` is the owner's lock, which guards this.
#pragma once
#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class UnlockedWork {
 public:
  // The work is under way, and the lock is released, for as long as it lives. Begin it while none
  // is under way. clang's analysis believes the lock to be held meanwhile, as in Mutex::WaitFor: of
  // what it guards, use only what nobody else does during this work.
  class Scope {
   public:
    Scope(UnlockedWork& work, Mutex& mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS : work_(work),
                                                                             mutex_(mutex) {
      work_.is_under_way_ = true;
      mutex_.Unlock();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      mutex_.Lock();
      work_.is_under_way_ = false;
      work_.ended_.notify_all();
    }

   private:
    UnlockedWork& work_;
    Mutex& mutex_;
  };

  bool is_under_way() const { return is_under_way_; }
  // Waits until it is not under way.
  void Await(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (is_under_way_) mutex.WaitFor(ended_);
  }

 private:
  bool is_under_way_ = false;
  std::condition_variable ended_;
};

}  // namespace gemini::client
