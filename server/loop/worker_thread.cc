// SPDX-License-Identifier: Apache-2.0
#include "server/loop/worker_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace gemini::server {

WorkerThread::WorkerThread(const std::string& name) {
  // Signals are for the thread that handles them: a worker inherits a full mask. But for those that
  // a thread brings on itself: blocked, they end the process whatever handles them
  // (server/tiers/peer_memory.h).
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) ::sigdelset(&all, own);
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

void WorkerThread::Run(Job job) {
  MutexLock lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void WorkerThread::Serve() {
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (!stop_ && jobs_.empty()) mutex_.WaitFor(changed_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace gemini::server
