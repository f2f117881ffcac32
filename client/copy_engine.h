// SPDX-License-Identifier: Apache-2.0
// The seam for moving bytes between HOST and DEVICE: two streams, one a direction, each in order,
// with events between them, as CUDA streams behave. copy_engine_host runs a worker thread a stream.
// Thread: any. Ownership: the caller keeps source and destination alive until the copy's event is
// done.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace gemini::client {

enum class CopyStream : uint8_t { kFetch = 0 /* to DEVICE */, kEvict = 1 /* from DEVICE */ };

// The point in a stream behind one of its copies. The default is done from the beginning.
struct CopyEvent {
  CopyStream stream = CopyStream::kFetch;
  uint64_t sequence = 0;
};

// Which chunk a copy moves, for the timeline. The default is in none.
struct CopySubject {
  int32_t space = -1;  // Its index in the session.
  uint32_t chunk = 0;
};

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Enqueues a copy behind all copies of `stream` and behind `after`. Returns at once. `subject`: shown in
  // the timeline, as a copy over the link.
  virtual CopyEvent Copy(CopyStream stream, void* destination, const void* source,
                         int64_t size_bytes, CopyEvent after, CopySubject subject) = 0;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after) {
    return Copy(stream, destination, source, size_bytes, after, CopySubject());
  }
  // Copies from DEVICE to DEVICE, before what operators do next. Not on a stream: it takes no link.
  virtual void CopyWithin(void* destination, const void* source, int64_t size_bytes) = 0;
  // Returns whether everything up to the event is done; the bytes are then visible to the caller.
  virtual bool Done(CopyEvent event) const = 0;
  // Blocks the calling thread until Done.
  virtual void Wait(CopyEvent event) = 0;
};

}  // namespace gemini::client
