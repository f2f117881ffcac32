// SPDX-License-Identifier: Apache-2.0
#include "server/loop/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "gemini/system/errno_status.h"
#include "gemini/system/monotonic_clock.h"

namespace gemini::server {
namespace {

int64_t NowNs() { return absl::ToInt64Nanoseconds(MonotonicNow()); }

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Make() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "epoll_create1");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoStatus(errno, "eventfd");
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = 0}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(epoll), std::move(wake)));
}

EventLoop::EventLoop(UniqueFd epoll, UniqueFd wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

EventLoop::~EventLoop() = default;

absl::StatusOr<EventLoop::WatchId> EventLoop::Watch(int fd, uint32_t events, EventHandler handler) {
  owner_.AssertHere();
  const WatchId id = next_id_++;
  epoll_event event = {.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  watched_[id] = {fd, std::make_shared<EventHandler>(std::move(handler))};
  return id;
}

void EventLoop::Rewatch(WatchId id, uint32_t events) {
  owner_.AssertHere();
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  epoll_event event = {.events = events, .data = {.u64 = id}};
  GEMINI_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second.fd, &event) == 0);
}

void EventLoop::Unwatch(WatchId id) {
  owner_.AssertHere();
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
  watched_.erase(found);
}

EventLoop::TimerId EventLoop::After(absl::Duration delay, Message handler) {
  owner_.AssertHere();
  const TimerId id = {NowNs() + absl::ToInt64Nanoseconds(delay), next_id_++};
  timers_.emplace(id, std::move(handler));
  return id;
}

void EventLoop::Cancel(TimerId id) {
  owner_.AssertHere();
  timers_.erase(id);
}

void EventLoop::Post(Message message) {
  {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
    if (messages_.size() > 1) return;  // The first has woken the loop, which takes all at once.
  }
  const uint64_t one = 1;
  // A full counter cannot happen: it wakes at 1 and is read to 0.
  GEMINI_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

void EventLoop::Stop() {
  Post([this] {
    owner_.AssertHere();
    stop_ = true;
  });
}

void EventLoop::RunMessages() {
  uint64_t count;
  (void)!::read(wake_.get(), &count, sizeof(count));
  std::vector<Message> messages;
  {
    MutexLock lock(mutex_);
    messages.swap(messages_);
  }
  for (Message& message : messages) message();
}

void EventLoop::RunTimers() {
  owner_.AssertHere();
  const int64_t now = NowNs();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    Message handler = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    handler();
  }
}

int EventLoop::TimeoutMilliseconds() const {
  owner_.AssertHere();
  if (timers_.empty()) return -1;
  const int64_t left_ns = timers_.begin()->first.first - NowNs();
  return static_cast<int>(std::clamp<int64_t>((left_ns + 999'999) / 1'000'000, 0, 60'000));
}

void EventLoop::Run() {
  owner_.Adopt();
  owner_.AssertHere();
  stop_ = false;
  std::array<epoll_event, 64> events;
  while (!stop_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   TimeoutMilliseconds());
    GEMINI_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;  // A copy: the kernel's struct is packed.
      if (id == 0) {
        RunMessages();
        continue;
      }
      const auto found = watched_.find(id);
      if (found == watched_.end()) continue;  // Unwatched by a handler of this round.
      // The copy keeps the handler alive if it unwatches itself.
      const std::shared_ptr<EventHandler> handler = found->second.handler;
      (*handler)(events[i].events);
    }
    RunTimers();
  }
}

}  // namespace gemini::server
