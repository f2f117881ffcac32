// SPDX-License-Identifier: Apache-2.0
#include "server/worker_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace gemini::server {

WorkerThread::WorkerThread(const std::string& name) {
  // Signals are for the thread that handles them: a worker inherits a full mask.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread(&WorkerThread::Serve, this);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

WorkerThread::~WorkerThread() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void WorkerThread::Run(Job job, uint64_t tag) {
  MutexLock lock(mutex_);
  jobs_.push_back({std::move(job), tag});
  changed_.notify_one();
}

std::vector<WorkerThread::Job> WorkerThread::Withdraw(uint64_t tag) {
  std::vector<Job> withdrawn;
  MutexLock lock(mutex_);
  for (Queued& queued : jobs_) {
    if (queued.tag == tag) withdrawn.push_back(std::move(queued.job));
  }
  std::erase_if(jobs_, [&](const Queued& queued) { return queued.tag == tag; });
  return withdrawn;
}

void WorkerThread::Serve() {
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (!stop_ && jobs_.empty()) mutex_.WaitFor(changed_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front().job);
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace gemini::server
