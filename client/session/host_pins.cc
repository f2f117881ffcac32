// SPDX-License-Identifier: Apache-2.0
#include "client/session/host_pins.h"

#include <limits>
#include <utility>

#include "client/copy/timeline_clock.h"

namespace gemini::client {

HostPins::HostPins(PinHost driver) : driver_(std::move(driver)), thread_([this] { Run(); }) {}

HostPins::~HostPins() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
  MutexLock lock(mutex_);
  for (std::byte* const data : pinned_) driver_.unpin(data);
}

void HostPins::Add(std::byte* data, int64_t size_bytes) {
  MutexLock lock(mutex_);
  if (!status_.ok()) return;
  waiting_.push_back({data, size_bytes});
  progress_->resting_since_ns.store(std::numeric_limits<int64_t>::max(), std::memory_order_release);
  changed_.notify_all();
}

int64_t HostPins::pinned_bytes() const {
  MutexLock lock(mutex_);
  return pinned_bytes_;
}

absl::Status HostPins::status() const {
  MutexLock lock(mutex_);
  return status_;
}

HostPins::Slab HostPins::TakeNext() {
  MutexLock lock(mutex_);
  while (!ending_ && status_.ok() && waiting_.empty()) mutex_.WaitFor(changed_);
  if (ending_ || !status_.ok()) return {};
  const Slab next = waiting_.front();
  waiting_.pop_front();
  return next;
}

void HostPins::Run() {
  for (Slab slab = TakeNext(); slab.data != nullptr; slab = TakeNext()) {
    absl::Status pinned = driver_.pin(slab.data, slab.size_bytes);
    MutexLock lock(mutex_);
    if (pinned.ok()) {
      pinned_.push_back(slab.data);
      pinned_bytes_ += slab.size_bytes;
    } else {
      status_ = std::move(pinned);  // The end of the loop.
      waiting_.clear();
    }
    if (!waiting_.empty()) continue;
    progress_->resting_since_ns.store(TimelineNowNs(), std::memory_order_release);
    progress_->num_rests.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace gemini::client
