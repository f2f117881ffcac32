// SPDX-License-Identifier: Apache-2.0
// Places ranges on-line: it fetches them when an operator needs them, and evicts the least recently
// used ones to make room.
// Thread: any. All functions release the lock of the tier while bytes move.
// Deadlock: a thread decides under the lock, when nothing else moves, which ranges to evict and to
// fetch, and takes the slots at once. Ranges that have to be written back for that are written back
// before, and then the thread decides again, because others may have used them. So it never holds a
// victim that is still to be written back, and two threads that fetch at once take turns. What
// they wait for is said in client/device/device_tier.h.
#pragma once
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/device/device_tier.h"

namespace gemini::client {

// Takes a step towards having all of `ids` on DEVICE at once: it writes back a range that has to be
// evicted, or evicts and fetches. Other threads may have moved ranges meanwhile, so call it again
// until all are on DEVICE. Call it when nothing moves, each of `ids` may be pinned or is absent,
// and none awaits a commit. On an error those that were absent still are. RESOURCE_EXHAUSTED: they
// do not fit beside what others have pinned, or a write-back finds no room in HOST.
absl::Status BringIn(DeviceTier& tier, absl::Span<const RangeId> ids)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex);

// As Residency::MakeRoom and Residency::SetBudget, without the pending release.
bool MakeRoom(DeviceTier& tier, int64_t size_bytes, absl::Status* why)
    ABSL_LOCKS_EXCLUDED(tier.mutex);
absl::Status SetBudget(DeviceTier& tier, int64_t device_bytes) ABSL_LOCKS_EXCLUDED(tier.mutex);

}  // namespace gemini::client
