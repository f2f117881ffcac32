// SPDX-License-Identifier: Apache-2.0
#include "client/copy/copy_engine_cuda.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/copy/cuda_call_scope.h"
#include "client/copy/cuda_status.h"
#include "client/copy/space_timeline.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// A float of milliseconds counts microseconds exactly for 16 s.
constexpr int64_t kAnchorNs = 10'000'000'000;
// Between two looks at our clock, the GPU's moment between them is known this well; a busy machine
// is asked again.
constexpr int64_t kAnchorErrorNs = 50'000;
constexpr int kAnchorTries = 4;

}  // namespace

class CopyEngineCuda::UnusedEvents {
 public:
  Event Take() {
    MutexLock lock(mutex_);
    if (events_.empty()) return nullptr;
    Event event = std::move(events_.back());
    events_.pop_back();
    return event;
  }
  // To be called where CUDA may be.
  void Clear() {
    MutexLock lock(mutex_);
    events_.clear();
  }
  void Give(Event event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
  }

 private:
  Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
};

struct CopyEngineCuda::Point {
  Event event;
  std::shared_ptr<const Anchor> anchor;
  std::shared_ptr<UnusedEvents> unused;

  Point() = default;
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;
  // An event that is recorded again is another point's, so no thread may wait for this one any
  // more.
  ~Point() {
    if (event != nullptr) unused->Give(std::move(event));
  }
};

CopyEngineCuda::CopyEngineCuda(const CudaDriver& driver, CopyEngineCudaOptions options)
    : driver_(driver),
      options_(std::move(options)),
      unused_events_(std::make_shared<UnusedEvents>()) {}

absl::StatusOr<std::unique_ptr<CopyEngineCuda>> CopyEngineCuda::Make(
    const CudaDriver& driver, CopyEngineCudaOptions options) {
  const int device = options.device;
  std::unique_ptr<CopyEngineCuda> engine(new CopyEngineCuda(driver, std::move(options)));
  const CudaCallScope scope(driver, device);
  GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(::cudaSetDevice(device), absl::StrCat("GPU ", device)));
  // Torch's default stream is the legacy one, which would wait for blocking streams, and they for
  // it.
  for (Order& order : engine->orders_) {
    GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(
        ::cudaStreamCreateWithFlags(&order.stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  }
  GEMINI_RETURN_IF_ERROR(
      CudaRuntimeStatus(::cudaStreamCreateWithFlags(&engine->anchor_stream_, cudaStreamNonBlocking),
                        "cudaStreamCreate"));
  return engine;
}

CopyEngineCuda::~CopyEngineCuda() {
  const CudaCallScope scope(driver_, options_.device);
  for (size_t i = 0; i < orders_.size(); ++i) {
    Order& order = orders_[i];
    if (order.stream == nullptr) continue;
    MutexLock lock(order.mutex);
    ::cudaStreamSynchronize(order.stream);
    // Operators' own streams are not ours to wait for.
    Advance(i, order);
    order.in_flight.clear();
    order.unused.clear();
    ::cudaStreamDestroy(order.stream);
  }
  unused_events_->Clear();
  MutexLock lock(anchor_mutex_);
  anchor_.reset();
  if (anchor_stream_ != nullptr) ::cudaStreamDestroy(anchor_stream_);
}

CopyEvent CopyEngineCuda::Copy(CopyStream stream, void* destination, const void* source,
                               int64_t size_bytes, CopyEvent after, CopySubject subject) {
  const CudaCallScope scope(driver_, options_.device);
  const size_t which = static_cast<size_t>(stream);
  Order& order = orders_[which];
  const bool shown = options_.timeline != nullptr && subject.space >= 0;
  std::shared_ptr<const Anchor> anchor = shown ? RecentAnchor() : nullptr;
  // Before the lock, so that no two are held: what comes between only runs later. A stream is in
  // order by itself.
  const bool behind = MakeWait(order.stream, after, which);
  MutexLock lock(order.mutex);
  Advance(which, order);
  if (behind && !failed_.load(std::memory_order_acquire)) {
    InFlight copy = {.sequence = order.enqueued + 1,
                     .end = TakeEvent(order),
                     .begin = anchor != nullptr ? TakeEvent(order) : nullptr,
                     .subject = subject,
                     .size_bytes = size_bytes,
                     .anchor = std::move(anchor)};
    if (copy.end != nullptr && Enqueue(order, destination, source, copy)) {
      order.enqueued = copy.sequence;
      order.in_flight.push_back(std::move(copy));
    }
  }
  return CopyEvent::Behind(which, order.enqueued);
}

bool CopyEngineCuda::MakeWait(cudaStream_t stream, const CopyEvent& event, size_t but) const {
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (i == but) continue;
    const Event before = Find(i, event.sequences[i]);
    if (before != nullptr &&
        !Succeeds(::cudaStreamWaitEvent(stream, before.get(), 0), "cudaStreamWaitEvent")) {
      return false;
    }
  }
  return true;
}

bool CopyEngineCuda::Enqueue(const Order& order, void* destination, const void* source,
                             const InFlight& copy) const {
  if (copy.begin != nullptr &&
      !Succeeds(::cudaEventRecord(copy.begin.get(), order.stream), "cudaEventRecord")) {
    return false;
  }
  const auto size = static_cast<size_t>(copy.size_bytes);
  if (size > 0 &&
      !Succeeds(source == nullptr
                    ? ::cudaMemsetAsync(destination, 0, size, order.stream)
                    : ::cudaMemcpyAsync(destination, source, size, cudaMemcpyDefault, order.stream),
                source == nullptr ? "cudaMemsetAsync" : "cudaMemcpyAsync")) {
    return false;
  }
  if (Succeeds(::cudaEventRecord(copy.end.get(), order.stream), "cudaEventRecord")) return true;
  // Its end will not be seen, so it ends now.
  ::cudaStreamSynchronize(order.stream);
  return false;
}

void CopyEngineCuda::CopyWithin(void* destination, const void* source, int64_t size_bytes) {
  if (size_bytes == 0 || failed_.load(std::memory_order_acquire)) return;
  const CudaCallScope scope(driver_, options_.device);
  Succeeds(::cudaMemcpyAsync(destination, source, static_cast<size_t>(size_bytes),
                             cudaMemcpyDefault, options_.compute_stream()),
           "cudaMemcpyAsync within the GPU");
}

CopyEvent CopyEngineCuda::AfterOperators() {
  const CudaCallScope scope(driver_, options_.device);
  const cudaStream_t stream = options_.compute_stream();
  Order& order = orders_[kOperatorOrder];
  MutexLock lock(order.mutex);
  Advance(kOperatorOrder, order);
  if (!failed_.load(std::memory_order_acquire)) {
    InFlight point;
    point.sequence = order.enqueued + 1;
    point.end = TakeEvent(order);
    if (point.end != nullptr && RecordPoint(order, stream, point.end)) {
      order.enqueued = point.sequence;
      order.in_flight.push_back(std::move(point));
    }
  }
  // Without a point that waits for them, nobody must rely on one before: they end now.
  if (failed_.load(std::memory_order_acquire)) ::cudaStreamSynchronize(stream);
  return CopyEvent::Behind(kOperatorOrder, order.enqueued);
}

bool CopyEngineCuda::RecordPoint(Order& order, cudaStream_t stream, const Event& point) {
  if (order.in_flight.empty()) {
    order.joined = false;
    order.from = stream;
  } else if (!order.joined && stream != order.from) {
    order.joined = true;
    if (!Succeeds(::cudaStreamWaitEvent(order.stream, order.in_flight.back().end.get(), 0),
                  "cudaStreamWaitEvent")) {
      return false;
    }
  }
  if (!Succeeds(::cudaEventRecord(point.get(), stream), "cudaEventRecord")) return false;
  if (!order.joined) return true;
  // A wait is for what was recorded when it was asked for, so the event may be recorded again.
  return Succeeds(::cudaStreamWaitEvent(order.stream, point.get(), 0), "cudaStreamWaitEvent") &&
         Succeeds(::cudaEventRecord(point.get(), order.stream), "cudaEventRecord");
}

void CopyEngineCuda::MakeOperatorsWait(CopyEvent event) {
  if (Done(event)) return;
  const CudaCallScope scope(driver_, options_.device);
  MakeWait(options_.compute_stream(), event);
}

OperatorPoint CopyEngineCuda::Now() {
  OperatorPoint now = CopyEngine::Now();
  if (failed_.load(std::memory_order_acquire)) return now;
  const CudaCallScope scope(driver_, options_.device);
  auto point = std::make_shared<Point>();
  point->anchor = RecentAnchor();
  point->event = unused_events_->Take();
  if (point->event == nullptr) point->event = MakeEvent(cudaEventBlockingSync);
  point->unused = unused_events_;
  if (point->anchor != nullptr && point->event != nullptr &&
      Succeeds(::cudaEventRecord(point->event.get(), options_.compute_stream()),
               "cudaEventRecord")) {
    now.event = std::move(point);
  }
  return now;
}

std::optional<int64_t> CopyEngineCuda::TimeOf(const OperatorPoint& at) const {
  const auto* const point = static_cast<const Point*>(at.event.get());
  if (point == nullptr) return at.asked_ns;
  const CudaCallScope scope(driver_, options_.device);
  const cudaError_t result = ::cudaEventQuery(point->event.get());
  if (result == cudaErrorNotReady) {
    ::cudaGetLastError();  // As in Succeeds.
    return std::nullopt;
  }
  if (!Succeeds(result, "operators")) return at.asked_ns;
  return NsOf(*point->anchor, point->event.get()).value_or(at.asked_ns);
}

void CopyEngineCuda::AwaitPoint(const OperatorPoint& at) {
  const auto* const point = static_cast<const Point*>(at.event.get());
  if (point == nullptr) return;
  const CudaCallScope scope(driver_, options_.device);
  Succeeds(::cudaEventSynchronize(point->event.get()), "operators");
}

bool CopyEngineCuda::Done(CopyEvent event) const {
  for (size_t i = 0; i < orders_.size(); ++i) {
    Order& order = orders_[i];
    if (order.done.load(std::memory_order_acquire) >= event.sequences[i]) continue;
    const CudaCallScope scope(driver_, options_.device);
    MutexLock lock(order.mutex);
    Advance(i, order);
    if (order.done.load(std::memory_order_relaxed) < event.sequences[i]) return false;
  }
  return true;
}

void CopyEngineCuda::Wait(CopyEvent event) {
  const CudaCallScope scope(driver_, options_.device);
  for (size_t i = 0; i < orders_.size(); ++i) {
    const Event end = Find(i, event.sequences[i]);
    if (end == nullptr) continue;
    Succeeds(::cudaEventSynchronize(end.get()), "a copy");
    MutexLock lock(orders_[i].mutex);
    Advance(i, orders_[i]);
  }
}

absl::Status CopyEngineCuda::status() const {
  MutexLock lock(status_mutex_);
  return status_;
}

bool CopyEngineCuda::Succeeds(cudaError_t result, const char* what) const {
  if (result == cudaSuccess) return true;
  ::cudaGetLastError();  // Else somebody takes it for an error of theirs.
  MutexLock lock(status_mutex_);
  if (status_.ok()) status_ = CudaRuntimeStatus(result, what);
  failed_.store(true, std::memory_order_release);
  return false;
}

CopyEngineCuda::Event CopyEngineCuda::MakeEvent(unsigned flags) const {
  cudaEvent_t event = nullptr;
  if (!Succeeds(::cudaEventCreateWithFlags(&event, flags), "cudaEventCreate")) return nullptr;
  return Event(event, DestroyEvent());
}

CopyEngineCuda::Event CopyEngineCuda::TakeEvent(Order& order) const {
  if (order.unused.empty()) {
    // Waiting threads sleep, because the processors have updates to do.
    return MakeEvent(options_.timeline != nullptr ? cudaEventBlockingSync
                                                  : cudaEventBlockingSync | cudaEventDisableTiming);
  }
  Event event = std::move(order.unused.back());
  order.unused.pop_back();
  return event;
}

CopyEngineCuda::Event CopyEngineCuda::Find(size_t which, uint64_t sequence) const {
  Order& order = orders_[which];
  if (order.done.load(std::memory_order_acquire) >= sequence) return nullptr;
  MutexLock lock(order.mutex);
  if (order.in_flight.empty() || order.in_flight.front().sequence > sequence) return nullptr;
  const uint64_t index = sequence - order.in_flight.front().sequence;
  return index < order.in_flight.size() ? order.in_flight[index].end : nullptr;
}

void CopyEngineCuda::Advance(size_t which, Order& order) const {
  while (!order.in_flight.empty()) {
    InFlight& copy = order.in_flight.front();
    const cudaError_t result = ::cudaEventQuery(copy.end.get());
    if (result == cudaErrorNotReady) {
      ::cudaGetLastError();  // As in Succeeds.
      return;
    }
    // An error here is the context's end: nothing of it runs any more.
    if (Succeeds(result, "a copy")) Show(which, copy);
    order.done.store(copy.sequence, std::memory_order_release);
    for (Event* event : {&copy.end, &copy.begin}) {
      // Recorded again only when no thread waits for it any more.
      if (*event != nullptr && event->use_count() == 1) order.unused.push_back(std::move(*event));
    }
    order.in_flight.pop_front();
  }
}

void CopyEngineCuda::Show(size_t which, const InFlight& copy) const {
  if (copy.begin == nullptr) return;
  const std::optional<int64_t> begin_ns = NsOf(*copy.anchor, copy.begin.get());
  const std::optional<int64_t> end_ns = NsOf(*copy.anchor, copy.end.get());
  if (!begin_ns.has_value() || !end_ns.has_value()) return;
  WriteTimelineEvent(*options_.timeline, {.lane = which == static_cast<size_t>(CopyStream::kFetch)
                                                      ? TimelineLane::kFetch
                                                      : TimelineLane::kEvict,
                                          .space = static_cast<uint16_t>(copy.subject.space),
                                          .subject = copy.subject.chunk,
                                          .begin_ns = *begin_ns,
                                          .end_ns = *end_ns,
                                          .size_bytes = copy.size_bytes});
}

std::optional<int64_t> CopyEngineCuda::NsOf(const Anchor& anchor, cudaEvent_t event) {
  float milliseconds = 0;
  if (::cudaEventElapsedTime(&milliseconds, anchor.event.get(), event) != cudaSuccess) {
    ::cudaGetLastError();
    return std::nullopt;
  }
  return anchor.host_ns + static_cast<int64_t>(double{milliseconds} * 1e6);
}

std::shared_ptr<const CopyEngineCuda::Anchor> CopyEngineCuda::RecentAnchor() {
  MutexLock lock(anchor_mutex_);
  if (anchor_ != nullptr && TimelineNowNs() - anchor_->host_ns < kAnchorNs) return anchor_;
  auto anchor = std::make_shared<Anchor>();
  anchor->event = MakeEvent(cudaEventDefault);
  if (anchor->event == nullptr) return nullptr;
  // The stream is empty, so its event is between the two looks, if not where so many streams are in
  // use that the GPU takes this one for another.
  for (int i = 0; i < kAnchorTries; ++i) {
    const int64_t before_ns = TimelineNowNs();
    if (!Succeeds(::cudaEventRecord(anchor->event.get(), anchor_stream_), "cudaEventRecord")) {
      return nullptr;
    }
    if (!Succeeds(::cudaEventSynchronize(anchor->event.get()), "cudaEventSynchronize")) {
      return nullptr;
    }
    const int64_t width_ns = TimelineNowNs() - before_ns;
    anchor->host_ns = before_ns + width_ns / 2;
    if (width_ns < kAnchorErrorNs) break;
  }
  anchor_ = std::move(anchor);
  return anchor_;
}

}  // namespace gemini::client
