// SPDX-License-Identifier: Apache-2.0
#include "client/update/update_queue.h"

#include <pthread.h>

#include <utility>

namespace gemini::client {

UpdateQueue::UpdateQueue(ChunkStore& store, std::function<absl::Status(BundleId)> bring,
                         std::function<absl::StatusOr<bool>(BundleId)> update,
                         std::function<void(const absl::Status&)> failed)
    : store_(store),
      bring_(std::move(bring)),
      update_(std::move(update)),
      failed_(std::move(failed)) {
  if (store_.memory().shape().nvme_slots > 0) {
    mover_.emplace(store_);
    mover_->StartForUpdates();
  }
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "gemini-update");
}

UpdateQueue::~UpdateQueue() {
  // A failure was told already.
  store_.updates().AwaitCommits().IgnoreError();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
}

void UpdateQueue::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  work_.notify_all();
}

void UpdateQueue::Later(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  work_.notify_all();
}

absl::Status UpdateQueue::Finish() {
  {
    MutexLock lock(mutex_);
    if (update_failed_) {
      update_failed_ = false;
      store_.updates().Retry();
      woken_ = true;
      work_.notify_all();
    }
  }
  return store_.updates().AwaitCommits();
}

void UpdateQueue::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (!woken_ && !stopping_ && tasks_.empty()) mutex_.WaitFor(work_);
      if (stopping_) return;
      woken_ = false;
    }
    UpdateAll();
    {
      MutexLock lock(mutex_);
      // One at a time: an update that comes meanwhile is more urgent.
      if (tasks_.empty()) continue;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void UpdateQueue::UpdateAll() {
  while (const std::optional<BundleId> bundle = store_.updates().Take()) {
    const absl::Status brought =
        store_.updates().AwaitsGradient(*bundle) ? bring_(*bundle) : absl::OkStatus();
    const int64_t begin_ns = TimelineNowNs();  // The time of a copy is no update's.
    const absl::StatusOr<bool> changed = brought.ok() ? update_(*bundle) : brought;
    if (changed.ok()) {
      // The rest takes no time that says how fast updates are.
      if (*changed) {
        store_.timeline().Add(TimelineLane::kUpdate, bundle->value(), begin_ns,
                              store_.memory().shape().payload_bytes() /
                                  ElementBytes(store_.format().element) * kTimelineElementBytes);
      }
      continue;
    }
    failed_(changed.status());
    MutexLock lock(mutex_);  // So that a Finish meanwhile sees both or none.
    store_.updates().Fail(changed.status());
    update_failed_ = true;
    return;
  }
}

}  // namespace gemini::client
