// SPDX-License-Identifier: Apache-2.0
// A CopyEngine whose operators run as late as they may, as a GPU's that is far behind its host:
// when somebody waits for a point behind them. Copies run as early as they may. So bytes that
// leave, or go over others, before the operators that want them there have run are seen; and so is
// a thread that waits for operators.
// Thread: any. What a thread is told to wait for, it tells the operators.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/copy/copy_engine_host.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class LazyOperators : public CopyEngineHost {
 public:
  explicit LazyOperators(TimelineShm* timeline) : CopyEngineHost({0, 0}, timeline) {}
  ~LazyOperators() override {
    Finish();
    CopyEvent copies;
    {
      MutexLock lock(mutex_);
      copies = copies_;
    }
    // The workers' waits come here.
    CopyEngineHost::Wait(copies);
  }

  // Begins an operator, behind all that were begun before.
  void Run(std::function<void()> operation) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(operation));
    ++begun_;
  }
  void Finish() { Wait(AfterOperators()); }
  // How often the thread waited for copies or operators that were not done.
  int64_t waits_of(std::thread::id thread) {
    MutexLock lock(mutex_);
    return waits_[thread];
  }

  using CopyEngine::Copy;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after, CopySubject subject) override {
    const CopyEvent event =
        CopyEngineHost::Copy(stream, destination, source, size_bytes, after, subject);
    MutexLock lock(mutex_);
    copies_.Join(event);
    return event;
  }
  void CopyWithin(void* destination, const void* source, int64_t size_bytes) override {
    Run([=] { std::memcpy(destination, source, static_cast<size_t>(size_bytes)); });
  }
  CopyEvent AfterOperators() override {
    MutexLock lock(mutex_);
    return CopyEvent::Behind(kOperatorOrder, begun_);
  }
  void MakeOperatorsWait(CopyEvent event) override {
    event.sequences[kOperatorOrder] = 0;  // These come before anyway.
    Run([this, event] { CopyEngineHost::Wait(event); });
  }
  OperatorPoint Now() override {
    OperatorPoint point = CopyEngineHost::Now();
    const auto reached = std::make_shared<Reached>();
    Run([reached] { reached->at_ns = TimelineNowNs(); });
    MutexLock lock(mutex_);
    reached->sequence = begun_;  // Its own, or that of one behind it.
    point.event = reached;
    return point;
  }
  std::optional<int64_t> TimeOf(const OperatorPoint& point) const override {
    if (point.event == nullptr) return point.asked_ns;
    const int64_t at_ns = static_cast<const Reached*>(point.event.get())->at_ns;
    return at_ns == 0 ? std::nullopt : std::optional(at_ns);
  }
  void AwaitPoint(const OperatorPoint& point) override {
    if (point.event != nullptr) RunUpTo(static_cast<const Reached*>(point.event.get())->sequence);
  }
  bool Done(CopyEvent event) const override {
    {
      MutexLock lock(mutex_);
      if (ended_ < event.sequences[kOperatorOrder]) return false;
    }
    return CopyEngineHost::Done(event);
  }
  void Wait(CopyEvent event) override {
    if (Done(event)) return;
    {
      MutexLock lock(mutex_);
      ++waits_[std::this_thread::get_id()];
    }
    RunUpTo(event.sequences[kOperatorOrder]);
    CopyEngineHost::Wait(event);
  }

 private:
  struct Reached {
    std::atomic<int64_t> at_ns{0};
    uint64_t sequence = 0;
  };

  // Whoever needs one runs it, and those before it.
  void RunUpTo(uint64_t last) {
    MutexLock lock(mutex_);
    while (ended_ < last) {
      if (running_) {
        mutex_.WaitFor(changed_);
        continue;
      }
      running_ = true;
      const std::function<void()> operation = std::move(queue_.front());
      queue_.pop_front();
      mutex_.Unlock();
      operation();
      mutex_.Lock();
      running_ = false;
      ++ended_;
      changed_.notify_all();
    }
  }

  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::thread::id, int64_t> waits_ ABSL_GUARDED_BY(mutex_);
  CopyEvent copies_ ABSL_GUARDED_BY(mutex_);  // Behind all.
};

}  // namespace gemini::client
