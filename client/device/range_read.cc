// SPDX-License-Identifier: Apache-2.0
#include "client/device/range_read.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/host/chunk_store.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

absl::StatusOr<CopyEvent> BeginRead(DeviceTier& tier, RangeId id, int64_t offset_bytes,
                                    void* destination, int64_t size_bytes) {
  MutexLock lock(tier.mutex);
  const DeviceRange& range = tier.table.at(id);
  const int64_t range_bytes = range.offset_bytes(range.num_bundles);
  if (offset_bytes < 0 || size_bytes < 0 || offset_bytes > range_bytes - size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a read of ", size_bytes, " bytes at ",
                                                   offset_bytes, " of a range of ", range_bytes));
  }
  GEMINI_RETURN_IF_ERROR(tier.Clean(id));
  auto* const to = static_cast<std::byte*>(destination);
  const CopyEvent after = tier.copies.AfterOperators();
  CopyEvent last;
  for (int64_t done = 0; done < size_bytes;) {
    const int64_t index = (offset_bytes + done) / range.payload_bytes;
    const int64_t inside = (offset_bytes + done) % range.payload_bytes;
    const int64_t piece = std::min(size_bytes - done, range.payload_bytes - inside);
    const ChunkId chunk = range.chunk(index);
    tier.mutex.Unlock();
    tier.landings.AwaitRoom();
    absl::StatusOr<HostChunk> host = range.store->Acquire(chunk, /*foreseen=*/false);
    if (host.ok()) {
      last = tier.copies.Copy(CopyStream::kFetch, to + done, host->data() + inside, piece, after,
                              range.store->timeline().CopyOf(chunk));
      range.store->counters().AddFetchBytes(piece);
      if (!tier.copies.Done(last)) tier.landings.Add(last, *std::move(host));
    } else {
      tier.copies.Wait(last);  // The caller may free the memory.
    }
    tier.mutex.Lock();
    GEMINI_RETURN_IF_ERROR(host.status());
    tier.fetch_bytes += piece;
    done += piece;
  }
  return last;
}

void AwaitRead(DeviceTier& tier, RangeId id, const CopyEvent& read) {
  OperatorPoint since = tier.stalls.Now();
  tier.copies.MakeOperatorsWait(read);
  MutexLock lock(tier.mutex);
  tier.stalls.Add(tier.table.at(id).store->counters(), StallCause::kTransfer, std::move(since));
}

}  // namespace gemini::client
