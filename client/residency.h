// SPDX-License-Identifier: Apache-2.0
// Which chunks are on DEVICE, who pins them, and what makes room: least recently used first,
// written back only when dirty. Sole author of the residency words of its spaces. Thread: any. A
// pin of a resident range makes no system call. Others block for their copies. Units:  a range is
// one chunk, or the consecutive chunks of one tensor that spans them; it lies in
//         adjacent DEVICE slots.
// Errors: RESOURCE_EXHAUSTED when the budget cannot hold what must be pinned at once; nothing is
//         pinned then. What ChunkStore returns passes through.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

using RangeId = Id<struct RangeTag>;

struct ResidencyStats {
  int64_t fetch_bytes = 0;        // To DEVICE, ever.
  int64_t evict_bytes = 0;        // Written back from DEVICE, ever.
  int64_t stall_ns = 0;           // Time that callers of Pin waited for copies or I/O, ever.
  int64_t pinned_peak_bytes = 0;  // The largest sum of chunks pinned at one time: the floor seen.
};

class Residency {
 public:
  virtual ~Residency() = default;

  // Adds the range of `num_bundles` chunks of `kind` from `first`. `store` outlives this.
  virtual RangeId AddRange(ChunkStore& store, BundleId first, int64_t num_bundles,
                           ChunkKind kind) = 0;

  // Pins each range of `ranges` (repeats allowed, counted each time), fetching what is not there,
  // and gives the address of each one's first byte. All or nothing.
  virtual absl::Status Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses) = 0;

  // Drops one pin of the range. `dirty`: its bytes were written while pinned. At the last pin's end
  // the chunk goes from COMPUTE to HOLD and may be evicted.
  virtual void Unpin(RangeId range, bool dirty) = 0;

  // Copies `size_bytes` from DEVICE memory `source` into the range at offset_bytes, where its
  // newest bytes are (its DEVICE copy, which becomes dirty, or HOST). Blocks until done.
  // Uncommitted kinds only.
  virtual absl::Status Write(RangeId range, int64_t offset_bytes, const void* source,
                             int64_t size_bytes) = 0;

  // Writes the range back if it is dirty; it stays on DEVICE, clean. FAILED_PRECONDITION: pinned.
  virtual absl::Status Flush(RangeId range) = 0;

  // Forgets the DEVICE copy, dirty or not. FAILED_PRECONDITION: pinned.
  virtual absl::Status Drop(RangeId range) = 0;

  // Evicts unpinned ranges, least recently used first, until `size_bytes` more fit into the budget.
  // Returns whether they fit. For the allocator of non-model data.
  virtual bool MakeRoom(int64_t size_bytes) = 0;

  virtual ResidencyStats stats() const = 0;
};

}  // namespace gemini::client
