// SPDX-License-Identifier: Apache-2.0
// Implements CopyEngine without a GPU: a worker thread for each stream copies between HOST and the
// DEVICE arena. With a rate it also simulates a link. A copy of b bytes then occupies its stream
// for b / rate, from when it is enqueued or from the end of the copy before, whichever is later,
// and is not done earlier. Without a rate, a small copy into an idle stream is made on the calling
// thread, because waking the worker would cost more.
// Units: bytes a second.
// Time: the delay of a late wake-up is not added to the next copy.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "client/copy/copy_engine.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class CopyEngineHost : public CopyEngine {
 public:
  using Clock = std::chrono::steady_clock;

  // Rates are by CopyStream; 0 is as fast as the memory is. None is negative. `timeline` gets the
  // copies that have a subject, each with the time that it had the link. It outlives this, and may
  // be null.
  explicit CopyEngineHost(std::array<int64_t, 2> bytes_per_second = {0, 0},
                          TimelineShm* timeline = nullptr);
  // Makes the copies that are enqueued, without waiting for the link's time, then joins the
  // workers.
  ~CopyEngineHost() override;

  using CopyEngine::Copy;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after, CopySubject subject) override;
  void CopyWithin(void* destination, const void* source, int64_t size_bytes) override;
  CopyEvent AfterOperators() override { return {}; }
  void MakeOperatorsWait(CopyEvent event) override { Wait(event); }
  bool Done(CopyEvent event) const override;
  void Wait(CopyEvent event) override;

 private:
  struct Job {
    void* destination;
    const void* source;
    int64_t size_bytes;
    CopyEvent after;
    CopySubject subject;
    Clock::time_point enqueued;  // Only with a rate.
  };
  struct Stream {
    int64_t bytes_per_second = 0;  // Constant.
    Mutex mutex;
    std::condition_variable changed;
    std::deque<Job> queue ABSL_GUARDED_BY(mutex);
    uint64_t enqueued ABSL_GUARDED_BY(mutex) = 0;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    // Whether the worker waits for a job, and not for the link's time.
    bool idle ABSL_GUARDED_BY(mutex) = false;
    std::atomic<uint64_t> done{0};  // Copies complete; the sequence of the last one.
    std::thread worker;
  };

  // When a copy had its stream to itself.
  struct Interval {
    Clock::time_point begin;
    Clock::time_point end;
  };

  void RunWorker(CopyStream which);
  // Copies, and returns when the link has finished the copy. `link_free` is when it has finished
  // all copies before.
  Interval RunPaced(Stream& stream, const Job& job, Clock::time_point& link_free);
  // Copies as fast as the memory is.
  Interval Run(const Job& job) const;
  void Show(CopyStream which, const Job& job, Interval when) const;

  TimelineShm* const timeline_;
  std::array<Stream, kNumCopyStreams> streams_;  // By CopyStream.
};

}  // namespace gemini::client
