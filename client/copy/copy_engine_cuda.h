// SPDX-License-Identifier: Apache-2.0
// Implements CopyEngine on a GPU, by a CUDA stream for each direction and an event after each copy.
// Order: operators of several streams count as one after the other: an event after those of one
// stream is after those that other streams had before it. That takes one more stream, which joins
// them, from when a second one appears until all are done.
// Memory: HOST is registered. A copy of memory that is not registered blocks its caller, and others
// that use the same stream. A range that is registered in part is an error.
// Thread: any. Only Wait, AwaitPoint and the destructor wait for the GPU. Now, and with a timeline
// a Copy, do so for some microseconds every ten seconds, to compare clocks.
// Errors: status() has the first. After it no copy is begun; those that were begun continue, and
// their events stay valid. A copy that was not made has the event of the one before. So bytes count
// only where status() is OK after Wait or Done.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/cuda_driver.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

struct CopyEngineCudaOptions {
  int device = 0;  // As the CUDA runtime counts them.
  // Returns the stream on which the calling thread's operators run. It lives until the session that
  // the engine is made for is gone.
  std::function<cudaStream_t()> compute_stream = [] { return cudaStream_t{nullptr}; };
  TimelineShm* timeline = nullptr;  // As for CopyEngineHost.
};

class CopyEngineCuda : public CopyEngine {
 public:
  // Makes an engine. `driver` outlives it. NOT_FOUND: there is no such GPU. RESOURCE_EXHAUSTED: it
  // has no memory for a context. UNAVAILABLE: another process has it exclusively.
  static absl::StatusOr<std::unique_ptr<CopyEngineCuda>> Make(const CudaDriver& driver,
                                                              CopyEngineCudaOptions options);
  // Waits until everything enqueued is done.
  ~CopyEngineCuda() override;

  using CopyEngine::Copy;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after, CopySubject subject) override;
  // Runs on the compute stream of the calling thread.
  void CopyWithin(void* destination, const void* source, int64_t size_bytes) override;
  CopyEvent AfterOperators() override;
  void MakeOperatorsWait(CopyEvent event) override;
  OperatorPoint Now() override;
  std::optional<int64_t> TimeOf(const OperatorPoint& point) const override;
  void AwaitPoint(const OperatorPoint& point) override;
  bool Done(CopyEvent event) const override;
  void Wait(CopyEvent event) override;
  absl::Status status() const override;

 private:
  // Shared by all that may still use it: a thread that waits for a copy, and the stream until it is
  // done.
  struct DestroyEvent {
    void operator()(cudaEvent_t event) const { ::cudaEventDestroy(event); }
  };
  using Event = std::shared_ptr<CUevent_st>;

  // A moment on the GPU's clock and on ours.
  struct Anchor {
    Event event;
    int64_t host_ns = 0;
  };
  // The event of an OperatorPoint, and the events of points that are gone.
  struct Point;
  class UnusedEvents;
  // A copy, or a point after operators.
  struct InFlight {
    uint64_t sequence = 0;
    Event end;
    // For copies that the timeline shows.
    Event begin;
    CopySubject subject;
    int64_t size_bytes = 0;
    std::shared_ptr<const Anchor> anchor;
  };
  struct Order {
    // Constant. For operators: the stream that joins those of several streams.
    cudaStream_t stream = nullptr;
    mutable Mutex mutex;
    uint64_t enqueued ABSL_GUARDED_BY(mutex) = 0;
    std::deque<InFlight> in_flight ABSL_GUARDED_BY(mutex);  // Consecutive, not yet seen done.
    std::vector<Event> unused ABSL_GUARDED_BY(mutex);
    std::atomic<uint64_t> done{0};
    // For operators: the points in flight are recorded on the stream `from`, or, from when `joined`
    // is set, on the stream that joins all.
    cudaStream_t from ABSL_GUARDED_BY(mutex) = nullptr;
    bool joined ABSL_GUARDED_BY(mutex) = false;
  };

  CopyEngineCuda(const CudaDriver& driver, CopyEngineCudaOptions options);
  // Returns whether it succeeded, and keeps the first error.
  bool Succeeds(cudaError_t result, const char* what) const;
  // Returns null if no event can be made.
  Event MakeEvent(unsigned flags) const;
  Event TakeEvent(Order& order) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(order.mutex);
  // Makes `stream` wait for those copies of the event that are not done, except in the order `but`.
  // Returns whether that succeeded.
  bool MakeWait(cudaStream_t stream, const CopyEvent& event, size_t but = kNumCopyOrders) const;
  // Returns whether the copy and its end are enqueued.
  bool Enqueue(const Order& order, void* destination, const void* source,
               const InFlight& copy) const;
  // Records `point` after what is in flight of `order` and what `stream` has to do. Returns whether
  // that succeeded.
  bool RecordPoint(Order& order, cudaStream_t stream, const Event& point)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(order.mutex);
  // Returns the event after the copy of that number, or null if it is done.
  Event Find(size_t which, uint64_t sequence) const;
  // Removes what is done from in_flight.
  void Advance(size_t which, Order& order) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(order.mutex);
  void Show(size_t which, const InFlight& copy) const;
  // Returns the event's time on our clock, or no value if the GPU does not report it.
  static std::optional<int64_t> NsOf(const Anchor& anchor, cudaEvent_t event);
  // Returns an anchor of the last seconds, because the GPU's times are floats of milliseconds from
  // it. Returns null if none can be made.
  std::shared_ptr<const Anchor> RecentAnchor();

  const CudaDriver& driver_;
  const CopyEngineCudaOptions options_;
  mutable std::array<Order, kNumCopyOrders> orders_;
  const std::shared_ptr<UnusedEvents> unused_events_;  // For points, which may outlive this.
  mutable std::atomic<bool> failed_{false};
  mutable Mutex status_mutex_;
  mutable absl::Status status_ ABSL_GUARDED_BY(status_mutex_);
  Mutex anchor_mutex_;
  cudaStream_t anchor_stream_ = nullptr;  // Constant; used for anchors alone.
  std::shared_ptr<const Anchor> anchor_ ABSL_GUARDED_BY(anchor_mutex_);
};

}  // namespace gemini::client
