// SPDX-License-Identifier: Apache-2.0
#include "client/copy_engine_cuda.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cuda_call_scope.h"
#include "client/cuda_status.h"
#include "client/space_timeline.h"
#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

// A float of milliseconds counts microseconds exactly for 16 s.
constexpr int64_t kAnchorNs = 10'000'000'000;
// Between two looks at our clock, the GPU's moment between them is known this well; a busy machine is asked again.
constexpr int64_t kAnchorErrorNs = 50'000;
constexpr int kAnchorTries = 4;

}  // namespace

absl::StatusOr<std::unique_ptr<CopyEngineCuda>> CopyEngineCuda::Make(
    const CudaDriver& driver, CopyEngineCudaOptions options) {
  const int device = options.device;
  std::unique_ptr<CopyEngineCuda> engine(new CopyEngineCuda(driver, std::move(options)));
  const CudaCallScope scope(driver, device);
  GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(::cudaSetDevice(device), absl::StrCat("GPU ", device)));
  // Torch's default stream is the legacy one, which would wait for blocking streams, and they for it.
  for (Stream& stream : engine->streams_) {
    GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(
        ::cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  }
  GEMINI_RETURN_IF_ERROR(
      CudaRuntimeStatus(::cudaStreamCreateWithFlags(&engine->anchor_stream_, cudaStreamNonBlocking),
                        "cudaStreamCreate"));
  return engine;
}

CopyEngineCuda::~CopyEngineCuda() {
  const CudaCallScope scope(driver_, options_.device);
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    if (stream.stream == nullptr) continue;
    ::cudaStreamSynchronize(stream.stream);
    MutexLock lock(stream.mutex);
    Advance(static_cast<CopyStream>(i), stream);
    stream.in_flight.clear();
    stream.unused.clear();
    ::cudaStreamDestroy(stream.stream);
  }
  MutexLock lock(anchor_mutex_);
  anchor_.reset();
  if (anchor_stream_ != nullptr) ::cudaStreamDestroy(anchor_stream_);
}

CopyEvent CopyEngineCuda::Copy(CopyStream which, void* destination, const void* source,
                               int64_t size_bytes, CopyEvent after, CopySubject subject) {
  const CudaCallScope scope(driver_, options_.device);
  // A stream is in order by itself; the other one's lock is not held beside this one's.
  const Event before = after.stream == which ? nullptr : Find(after);
  const bool shown = options_.timeline != nullptr && subject.space >= 0;
  std::shared_ptr<const Anchor> anchor = shown ? RecentAnchor() : nullptr;
  Stream& stream = StreamOf(which);
  MutexLock lock(stream.mutex);
  Advance(which, stream);
  if (!failed_.load(std::memory_order_acquire)) {
    InFlight copy = {.sequence = stream.enqueued + 1,
                     .end = TakeEvent(stream),
                     .begin = anchor != nullptr ? TakeEvent(stream) : nullptr,
                     .subject = subject,
                     .size_bytes = size_bytes,
                     .anchor = std::move(anchor)};
    if (copy.end != nullptr && Enqueue(stream, destination, source, copy, before)) {
      stream.enqueued = copy.sequence;
      stream.in_flight.push_back(std::move(copy));
    }
  }
  return {which, stream.enqueued};
}

bool CopyEngineCuda::Enqueue(const Stream& stream, void* destination, const void* source,
                             const InFlight& copy, const Event& before) const {
  if (before != nullptr &&
      !Succeeds(::cudaStreamWaitEvent(stream.stream, before.get(), 0), "cudaStreamWaitEvent")) {
    return false;
  }
  if (copy.begin != nullptr &&
      !Succeeds(::cudaEventRecord(copy.begin.get(), stream.stream), "cudaEventRecord")) {
    return false;
  }
  if (copy.size_bytes > 0 &&
      !Succeeds(::cudaMemcpyAsync(destination, source, static_cast<size_t>(copy.size_bytes),
                                  cudaMemcpyDefault, stream.stream),
                "cudaMemcpyAsync")) {
    return false;
  }
  if (Succeeds(::cudaEventRecord(copy.end.get(), stream.stream), "cudaEventRecord")) return true;
  // Nobody will know when it ends, so it ends now.
  ::cudaStreamSynchronize(stream.stream);
  return false;
}

void CopyEngineCuda::CopyWithin(void* destination, const void* source, int64_t size_bytes) {
  if (size_bytes == 0 || failed_.load(std::memory_order_acquire)) return;
  const CudaCallScope scope(driver_, options_.device);
  Succeeds(::cudaMemcpyAsync(destination, source, static_cast<size_t>(size_bytes),
                             cudaMemcpyDefault, options_.compute_stream()),
           "cudaMemcpyAsync within the GPU");
}

bool CopyEngineCuda::Done(CopyEvent event) const {
  Stream& stream = StreamOf(event.stream);
  if (stream.done.load(std::memory_order_acquire) >= event.sequence) return true;
  const CudaCallScope scope(driver_, options_.device);
  MutexLock lock(stream.mutex);
  Advance(event.stream, stream);
  return stream.done.load(std::memory_order_relaxed) >= event.sequence;
}

void CopyEngineCuda::Wait(CopyEvent event) {
  const CudaCallScope scope(driver_, options_.device);
  const Event end = Find(event);
  if (end == nullptr) return;
  Succeeds(::cudaEventSynchronize(end.get()), "a copy");
  Stream& stream = StreamOf(event.stream);
  MutexLock lock(stream.mutex);
  Advance(event.stream, stream);
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

CopyEngineCuda::Event CopyEngineCuda::TakeEvent(Stream& stream) const {
  if (stream.unused.empty()) {
    // Whoever waits sleeps: the processors have updates to do.
    return MakeEvent(options_.timeline != nullptr ? cudaEventBlockingSync
                                                  : cudaEventBlockingSync | cudaEventDisableTiming);
  }
  Event event = std::move(stream.unused.back());
  stream.unused.pop_back();
  return event;
}

CopyEngineCuda::Event CopyEngineCuda::Find(CopyEvent event) const {
  Stream& stream = StreamOf(event.stream);
  if (stream.done.load(std::memory_order_acquire) >= event.sequence) return nullptr;
  MutexLock lock(stream.mutex);
  if (stream.in_flight.empty() || stream.in_flight.front().sequence > event.sequence) {
    return nullptr;
  }
  const uint64_t index = event.sequence - stream.in_flight.front().sequence;
  return index < stream.in_flight.size() ? stream.in_flight[index].end : nullptr;
}

void CopyEngineCuda::Advance(CopyStream which, Stream& stream) const {
  while (!stream.in_flight.empty()) {
    InFlight& copy = stream.in_flight.front();
    const cudaError_t result = ::cudaEventQuery(copy.end.get());
    if (result == cudaErrorNotReady) {
      ::cudaGetLastError();  // As in Succeeds.
      return;
    }
    // An error here is the context's end: nothing of it runs any more.
    if (Succeeds(result, "a copy")) Show(which, copy);
    stream.done.store(copy.sequence, std::memory_order_release);
    for (Event* event : {&copy.end, &copy.begin}) {
      // Recorded again only when nobody waits for it any more.
      if (*event != nullptr && event->use_count() == 1) stream.unused.push_back(std::move(*event));
    }
    stream.in_flight.pop_front();
  }
}

void CopyEngineCuda::Show(CopyStream which, const InFlight& copy) const {
  if (copy.begin == nullptr) return;
  const auto nanoseconds = [&copy](const Event& event) -> std::optional<int64_t> {
    float milliseconds = 0;
    if (::cudaEventElapsedTime(&milliseconds, copy.anchor->event.get(), event.get()) !=
        cudaSuccess) {
      ::cudaGetLastError();
      return std::nullopt;
    }
    return copy.anchor->host_ns + static_cast<int64_t>(double{milliseconds} * 1e6);
  };
  const std::optional<int64_t> begin_ns = nanoseconds(copy.begin);
  const std::optional<int64_t> end_ns = nanoseconds(copy.end);
  if (!begin_ns.has_value() || !end_ns.has_value()) return;
  WriteTimelineEvent(
      *options_.timeline,
      {.lane = which == CopyStream::kFetch ? TimelineLane::kFetch : TimelineLane::kEvict,
       .space = static_cast<uint16_t>(copy.subject.space),
       .subject = copy.subject.chunk,
       .begin_ns = *begin_ns,
       .end_ns = *end_ns,
       .size_bytes = copy.size_bytes});
}

std::shared_ptr<const CopyEngineCuda::Anchor> CopyEngineCuda::RecentAnchor() {
  MutexLock lock(anchor_mutex_);
  if (anchor_ != nullptr && TimelineNowNs() - anchor_->host_ns < kAnchorNs) return anchor_;
  auto anchor = std::make_shared<Anchor>();
  anchor->event = MakeEvent(cudaEventDefault);
  if (anchor->event == nullptr) return nullptr;
  // The stream is empty, so its event is between the two looks, if not where so many streams are in use that the GPU
  // takes this one for another.
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
