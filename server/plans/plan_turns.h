// SPDX-License-Identifier: Apache-2.0
// Holds the requests that wait for the planning thread. Processes take turns, one request each, so
// that one which asks with many sessions holds another up for no more than one of its plans. The
// requests of one process keep their order.
// Thread: any.
#pragma once
#include <sys/types.h>

#include <deque>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "gemini/system/mutex.h"

namespace gemini::server {

class PlanTurns {
 public:
  using Job = absl::AnyInvocable<void()>;

  void Push(pid_t process, Job job) {
    MutexLock lock(mutex_);
    std::deque<Job>& jobs = jobs_[process];
    if (jobs.empty()) turns_.push_back(process);
    jobs.push_back(std::move(job));
  }

  // Takes the next job of the process whose turn it is. There is one: each Next has its Push.
  Job Next() {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(turns_.front());
    turns_.pop_front();
    Job job = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      jobs_.erase(found);
    } else {
      turns_.push_back(found->first);
    }
    return job;
  }

 private:
  Mutex mutex_;
  std::map<pid_t, std::deque<Job>> jobs_ ABSL_GUARDED_BY(mutex_);  // None is empty.
  std::deque<pid_t> turns_ ABSL_GUARDED_BY(mutex_);                // Of each in jobs_, once.
};

}  // namespace gemini::server
