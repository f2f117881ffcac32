// SPDX-License-Identifier: Apache-2.0
// The moves that a plan makes on DEVICE besides DeviceTier's own. Each returns soon after the plan
// has ended.
// Thread: any. All release the lock of the tier while they wait and while bytes move.
#pragma once
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/device/device_tier.h"
#include "gemini/ids.h"

namespace gemini::client {

// Evicts all ranges except those of `keep` that are in their slots there, once nothing moves. A
// range of `keep` that is elsewhere gets no slot in `keep`. FAILED_PRECONDITION: pinned.
absl::Status Vacate(DeviceTier& tier, absl::Span<std::pair<RangeId, SlotId>> keep)
    ABSL_LOCKS_EXCLUDED(tier.mutex);

enum class FetchStart { kStarted, kNoBudget, kEnded };

// Waits until the range is not on DEVICE and the slots from `slot` are free, then takes and charges
// them, for a fetch, which FinishFetch ends, or (`blank`) for a Residency::BeginWrite. It is the
// lane that fetches which waits.
FetchStart BeginFetch(DeviceTier& tier, RangeId range, SlotId slot, bool blank)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex);
// Brings the range in. If that fails, it is absent, and the plan has ended.
absl::Status FinishFetch(DeviceTier& tier, RangeId range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex);

}  // namespace gemini::client
