// SPDX-License-Identifier: Apache-2.0
// CopyEngine without a GPU: a worker thread a stream copies between HOST and the DEVICE arena.
// A small copy into an idle stream is made on the calling thread: waking the worker would cost
// more.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "client/copy_engine.h"
#include "client/mutex.h"

namespace gemini::client {

class CopyEngineHost : public CopyEngine {
 public:
  CopyEngineHost();
  // Finishes what is enqueued, then joins the workers.
  ~CopyEngineHost() override;

  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after) override;
  bool Done(CopyEvent event) const override;
  void Wait(CopyEvent event) override;

 private:
  struct Job {
    void* destination;
    const void* source;
    int64_t size_bytes;
    CopyEvent after;
  };
  struct Stream {
    Mutex mutex;
    std::condition_variable changed;
    std::deque<Job> queue ABSL_GUARDED_BY(mutex);
    uint64_t enqueued ABSL_GUARDED_BY(mutex) = 0;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    std::atomic<uint64_t> done{0};  // Copies complete; the sequence of the last one.
    std::thread worker;
  };

  void RunWorker(Stream& stream);

  std::array<Stream, 2> streams_;  // By CopyStream.
};

}  // namespace gemini::client
