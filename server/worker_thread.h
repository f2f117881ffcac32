// SPDX-License-Identifier: Apache-2.0
// A named thread that runs jobs in the order given: what may wait for the kernel or a disk.
// Thread: Run may be called from any thread. Jobs hold bytes in flight and no metadata; they report
//         by a message to the owner thread's loop.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "gemini/mutex.h"

namespace gemini::server {

class WorkerThread {
 public:
  using Job = absl::AnyInvocable<void()>;

  // `name` has at most 15 characters; a longer one is cut (the kernel's limit).
  explicit WorkerThread(const std::string& name);
  // Runs the jobs still queued, then joins.
  ~WorkerThread();

  // Queues `job`. It throws nothing. `tag` says whose it is, for Withdraw.
  void Run(Job job, uint64_t tag = 0);
  // Takes the jobs with `tag` (not 0) that have not begun off the queue. They are the caller's to
  // destroy: what they hold may take long to release.
  std::vector<Job> Withdraw(uint64_t tag);

 private:
  struct Queued {
    Job job;
    uint64_t tag;
  };
  void Serve();

  Mutex mutex_;
  std::condition_variable changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Queued> jobs_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses what is above.
};

}  // namespace gemini::server
