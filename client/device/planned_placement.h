// SPDX-License-Identifier: Apache-2.0
// Makes the moves of a plan on DEVICE that DeviceTier does not make itself. Each function returns
// soon after the plan has ended.
// Thread: any. All functions release the lock of the tier while they wait and while bytes move.
#pragma once
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/device/device_tier.h"
#include "gemini/ids.h"

namespace gemini::client {

// Waits until nothing moves, then evicts all ranges except those of `keep` that begin in the slot
// that `keep` gives for them. For the other ranges of `keep` it sets that slot to none.
// FAILED_PRECONDITION: a range to evict is pinned; nothing is evicted then. Others: of a
// write-back.
absl::Status Vacate(DeviceTier& tier, absl::Span<std::pair<RangeId, SlotId>> keep)
    ABSL_LOCKS_EXCLUDED(tier.mutex);

// kNoBudget: the budget is used up, and the plan evicts nothing before the operators advance.
// kEnded: the plan has ended.
enum class FetchStart { kStarted, kNoBudget, kEnded };

// Waits until the range is not on DEVICE and the slots from `slot` on are free, then takes and
// charges them: for a fetch, which FinishFetch ends, or, if `blank`, for a Residency::BeginWrite.
// For the lane that fetches.
FetchStart BeginFetch(DeviceTier& tier, RangeId range, SlotId slot, bool blank)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex);
// Copies the range to DEVICE. If that fails, the range is absent, and the plan has ended.
absl::Status FinishFetch(DeviceTier& tier, RangeId range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex);

}  // namespace gemini::client
