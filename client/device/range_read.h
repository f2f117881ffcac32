// SPDX-License-Identifier: Apache-2.0
// Copies bytes of a range to DEVICE memory that is no chunk's. The range itself stays where it is,
// so no slot is taken and no plan is left.
// Thread: any. BeginRead releases the lock of the tier while it waits.
#pragma once
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/device/device_tier.h"

namespace gemini::client {

// Copies `size_bytes` at offset_bytes of the range's newest bytes, over the link, behind the
// calling thread's operators. A dirty range is written back first. Returns the last copy's event
// when all are enqueued; `destination` lives until then. Waits for a commit that a bundle awaits,
// and while many copies are in flight. INVALID_ARGUMENT: past the range's end. Others: of a
// write-back and of ChunkStore::Acquire. On an error no copy is in flight.
absl::StatusOr<CopyEvent> BeginRead(DeviceTier& tier, RangeId range, int64_t offset_bytes,
                                    void* destination, int64_t size_bytes)
    ABSL_LOCKS_EXCLUDED(tier.mutex);
// Makes operators that the calling thread begins next run after a read of the range. The time
// counts as a stall for transfer.
void AwaitRead(DeviceTier& tier, RangeId range, const CopyEvent& read)
    ABSL_LOCKS_EXCLUDED(tier.mutex);

}  // namespace gemini::client
