// SPDX-License-Identifier: Apache-2.0
// On-line placement: ranges are fetched when an operator asks for them, and the least recently used
// ones are evicted for them.
// Thread: any. All release the lock of the tier while bytes move.
// Deadlock: a thread decides what leaves and what comes under the lock, when nothing else moves,
// and takes the slots in that moment. What has to be written back for it is written back before,
// and then the thread looks again, for others may have used it. So it never holds a victim that is
// still to be written back, and two threads that fetch at once take turns. For what they wait
// see client/device/device_tier.h.
#pragma once
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/device/device_tier.h"

namespace gemini::client {

// Takes a step towards having all of `ids` on DEVICE at once, and returns OK when others may have
// moved since: call it again until they are there. It writes back one that has to leave, or evicts
// and fetches. Call it when nothing moves, each of `ids` is there or absent, and none awaits a
// commit. On an error none of those that were absent is there. RESOURCE_EXHAUSTED: they do not fit
// beside what others have pinned, or a write-back finds no room in HOST.
absl::Status BringIn(DeviceTier& tier, absl::Span<const RangeId> ids)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex);

// As Residency's.
bool MakeRoom(DeviceTier& tier, int64_t size_bytes, absl::Status* why)
    ABSL_LOCKS_EXCLUDED(tier.mutex);
absl::Status SetBudget(DeviceTier& tier, int64_t device_bytes) ABSL_LOCKS_EXCLUDED(tier.mutex);

}  // namespace gemini::client
