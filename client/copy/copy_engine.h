// SPDX-License-Identifier: Apache-2.0
// Defines the interface through which bytes move between HOST and DEVICE. An engine has two
// streams, one for each direction. Each runs its copies in order, and events order them with the
// other stream and with the operators, as in CUDA. It also measures when operators begin and end.
// copy_engine_host.h runs a worker thread for each stream, and its operators are over when they
// return; copy_engine_cuda.h uses a GPU.
// Order: a copy runs after `after` and the earlier copies of its stream, and after nothing else.
// Operators that a thread has begun wait for nothing but what was passed to MakeOperatorsWait on
// that thread before.
// Thread: any.
// Ownership: the caller keeps source and destination alive until the copy's event is done.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "client/copy/timeline_clock.h"

namespace gemini::client {

enum class CopyStream : uint8_t { kFetch = 0 /* to DEVICE */, kEvict = 1 /* from DEVICE */ };

inline constexpr size_t kNumCopyStreams = 2;
// Operators have an order of their own, beside those of the streams.
inline constexpr size_t kOperatorOrder = kNumCopyStreams;
inline constexpr size_t kNumCopyOrders = kNumCopyStreams + 1;

// A point that is reached when certain copies and operators are done. The default is done from the
// beginning.
struct CopyEvent {
  // By order (the streams, then the operators): how many of its copies, or of its points after
  // operators, must be done.
  std::array<uint64_t, kNumCopyOrders> sequences = {};

  static CopyEvent Behind(size_t order, uint64_t sequence) {
    CopyEvent event;
    event.sequences[order] = sequence;
    return event;
  }
  // Makes it wait for `other`, too.
  void Join(const CopyEvent& other) {
    for (size_t i = 0; i < kNumCopyOrders; ++i) {
      sequences[i] = std::max(sequences[i], other.sequences[i]);
    }
  }
};

// A point in the order of operators, for asking when they reached it.
struct OperatorPoint {
  int64_t asked_ns = 0;               // TimelineNowNs when CopyEngine::Now was called.
  std::shared_ptr<const void> event;  // The engine's own. Null: the point was reached at asked_ns.
};

// Which chunk a copy moves, for the timeline. The default names none.
struct CopySubject {
  int32_t space = -1;  // Its index in the session.
  uint32_t chunk = 0;
};

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Enqueues a copy after all copies of `stream` and after `after`. Returns at once. A null
  // `source` stands for zeros. The timeline shows the copy as one of `subject` over the link.
  virtual CopyEvent Copy(CopyStream stream, void* destination, const void* source,
                         int64_t size_bytes, CopyEvent after, CopySubject subject) = 0;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after) {
    return Copy(stream, destination, source, size_bytes, after, CopySubject());
  }
  // Copies from DEVICE to DEVICE as an operator of the calling thread: after the operators before
  // it and after what they wait for. Does not use the link between HOST and DEVICE.
  virtual void CopyWithin(void* destination, const void* source, int64_t size_bytes) = 0;
  // Returns the point after all operators that the calling thread has begun (on a GPU: on its
  // current stream), and those of earlier calls.
  virtual CopyEvent AfterOperators() = 0;
  // Makes the operators that the calling thread begins next run after the event. Blocks only where
  // operators are over when they return.
  virtual void MakeOperatorsWait(CopyEvent event) = 0;
  // Returns the point after all operators that the calling thread has begun, to measure what they
  // do.
  virtual OperatorPoint Now() { return {.asked_ns = TimelineNowNs(), .event = nullptr}; }
  // Returns when the operators reached the point, as TimelineNowNs counts, or no value if they have
  // not.
  virtual std::optional<int64_t> TimeOf(const OperatorPoint& point) const { return point.asked_ns; }
  // Blocks until the operators have reached the point.
  virtual void AwaitPoint(const OperatorPoint& /*point*/) {}
  // Returns whether everything up to the event is done; the bytes are then visible to the caller.
  virtual bool Done(CopyEvent event) const = 0;
  // Blocks the calling thread until Done.
  virtual void Wait(CopyEvent event) = 0;
  // Returns the first error of a copy. Bytes that were copied since may be wrong.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

}  // namespace gemini::client
