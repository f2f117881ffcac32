// SPDX-License-Identifier: Apache-2.0
// Registers HOST slabs with a GPU's driver, so that the GPU itself copies from and to them. That
// takes the driver 25 ms a slab or more, so a thread does it, slab after slab, while the session
// works. Copies of a slab that is not registered yet are correct but slower.
// Thread: any. Only the destructor blocks, for the slab in progress. It unpins all slabs, and no
// copy may use them by then.
// Errors: the first refusal ends it, because what refuses one slab refuses the next (limits of
// locked memory). status() has it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

// The driver's functions, never called two at a time. They are null if no driver needs it.
struct PinHost {
  std::function<absl::Status(std::byte* data, int64_t size_bytes)> pin;
  std::function<void(std::byte* data)> unpin;
};

// Shows whether all slabs are registered, so that copies are as fast as they will be. It may
// outlive its HostPins.
struct PinProgress {
  std::atomic<int64_t> num_rests{0};  // How often all pending slabs were done.
  // As TimelineNowNs counts; the largest number while slabs are pending.
  std::atomic<int64_t> resting_since_ns{std::numeric_limits<int64_t>::max()};
};

class HostPins {
 public:
  explicit HostPins(PinHost driver);
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;
  ~HostPins();

  // Adds a slab to be pinned after those before it. It stays mapped until the destructor has
  // returned.
  void Add(std::byte* data, int64_t size_bytes);
  int64_t pinned_bytes() const;
  absl::Status status() const;
  std::shared_ptr<const PinProgress> progress() const { return progress_; }

 private:
  struct Slab {
    std::byte* data = nullptr;
    int64_t size_bytes = 0;
  };
  void Run();
  // Returns the next slab. A null address ends the thread.
  Slab TakeNext();

  const PinHost driver_;
  const std::shared_ptr<PinProgress> progress_ = std::make_shared<PinProgress>();
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slab> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::byte*> pinned_ ABSL_GUARDED_BY(mutex_);
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last, because it uses the members above.
};

}  // namespace gemini::client
