// SPDX-License-Identifier: Apache-2.0
// Runs the handlers of descriptors, timers and messages from other threads on one thread, by
// epoll(7).
// Owner:  the thread that calls Run, except Post and Stop, which any thread may call.
// Errors: what the kernel refuses (no descriptors left) comes back as a Status.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gemini/system/mutex.h"
#include "gemini/system/owner_thread.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

class EventLoop {
 public:
  using WatchId = uint64_t;  // Never used twice, so a late event cannot reach a newer watch.
  using TimerId = std::pair<int64_t, uint64_t>;
  using EventHandler = absl::AnyInvocable<void(uint32_t events)>;
  using Message = absl::AnyInvocable<void()>;

  static absl::StatusOr<std::unique_ptr<EventLoop>> Make();
  ~EventLoop();

  // Calls `handler` with epoll events of `fd` (EPOLLET too) until Unwatch, which must come before
  // `fd` is closed: a descriptor that a peer holds too would go on reporting. A handler may unwatch
  // itself.
  absl::StatusOr<WatchId> Watch(int fd, uint32_t events, EventHandler handler);
  // EPOLLHUP and EPOLLERR are always reported.
  void Rewatch(WatchId id, uint32_t events);
  void Unwatch(WatchId id);

  // Calls `handler` once, `delay` or a little more from now, unless cancelled.
  TimerId After(absl::Duration delay, Message handler);
  void Cancel(TimerId id);

  // Has `message` run by the loop's thread, in the order posted. Messages that come after the end
  // of Run are destroyed with the loop, on the destroying thread.
  void Post(Message message);
  // Ends Run after the messages posted before.
  void Stop();

  // Makes the calling thread the owner and serves until Stop.
  void Run();
  const OwnerThread& owner() const { return owner_; }
  // Makes the calling thread the owner for work before or after Run.
  void Adopt() { owner_.Adopt(); }

 private:
  struct Watched {
    int fd;
    std::shared_ptr<EventHandler> handler;
  };
  EventLoop(UniqueFd epoll, UniqueFd wake);
  void RunMessages();
  void RunTimers();
  int TimeoutMilliseconds() const;

  OwnerThread owner_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  bool stop_ ABSL_GUARDED_BY(owner_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(owner_) = 1;  // 0 is the wake descriptor.
  std::unordered_map<WatchId, Watched> watched_ ABSL_GUARDED_BY(owner_);
  std::map<TimerId, Message> timers_ ABSL_GUARDED_BY(owner_);
  Mutex mutex_;  // Never held while a message runs.
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemini::server
