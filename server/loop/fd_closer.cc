// SPDX-License-Identifier: Apache-2.0
#include "server/loop/fd_closer.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "gemini/system/mutex.h"

namespace gemini::server {

struct FdCloser::State {
  Mutex mutex;
  std::condition_variable changed;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::deque<UniqueFd> fds ABSL_GUARDED_BY(mutex);
  bool closing ABSL_GUARDED_BY(mutex) = false;

  void Serve() {
    while (true) {
      UniqueFd fd;
      {
        MutexLock lock(mutex);
        closing = false;
        while (!stop && fds.empty()) mutex.WaitFor(changed);
        if (fds.empty()) return;
        fd = std::move(fds.front());
        fds.pop_front();
        closing = true;
      }
    }
  }
};

FdCloser::FdCloser() : state_(std::make_shared<State>()) {
  // Signals are for the thread that handles them: this one inherits a full mask.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([state = state_] { state->Serve(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread.native_handle(), "gemini-close");
  // The only thread that is not joined: how long a close blocks is a peer's choice.
  thread.detach();
}

FdCloser::~FdCloser() {
  MutexLock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_one();
}

void FdCloser::Close(UniqueFd fd) {
  if (!fd) return;
  MutexLock lock(state_->mutex);
  state_->fds.push_back(std::move(fd));
  state_->changed.notify_one();
}

int64_t FdCloser::num_waiting() const {
  MutexLock lock(state_->mutex);
  return static_cast<int64_t>(state_->fds.size()) + (state_->closing ? 1 : 0);
}

}  // namespace gemini::server
