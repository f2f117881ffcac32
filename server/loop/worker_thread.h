// SPDX-License-Identifier: Apache-2.0
// A named thread that runs jobs in the order given: what may wait for the kernel or a disk.
// Thread: Run may be called from any thread. Jobs hold bytes in flight and no metadata; they report
//         by a message to the owner thread's loop.
#pragma once
#include <condition_variable>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "gemini/system/mutex.h"

namespace gemini::server {

class WorkerThread {
 public:
  using Job = absl::AnyInvocable<void()>;

  // `name` has at most 15 characters; a longer one is cut (the kernel's limit).
  explicit WorkerThread(const std::string& name);
  // Runs the jobs still queued, then joins.
  ~WorkerThread();

  // Queues `job`. It throws nothing.
  void Run(Job job);

 private:
  void Serve();

  Mutex mutex_;
  std::condition_variable changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses what is above.
};

}  // namespace gemini::server
