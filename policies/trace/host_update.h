// SPDX-License-Identifier: Apache-2.0
// Computes how long the update of a param range in HOST takes. It is the updater's time, or the
// disk's where the home of the optimizer states is NVME, because reading, updating and writing
// overlap there (client/host/chunk_mover.h).
// Units: nanoseconds, bytes.
#pragma once
#include <cstdint>

#include "gemini/cost_model.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Returns the bytes of optimizer states that the update reads from NVME. It writes as many. Returns
// 0 where their home is HOST.
int64_t StateBytesOnNvme(const RangeTrace& trace, const PlannedRange& range);

// Returns how long one update takes in a sequence of updates of the range. The rates are > 0.
int64_t HostUpdateNs(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs);

// Returns whether the disk's time is the longer one, which HostUpdateNs returns.
bool WaitsForNvme(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs);

}  // namespace gemini::policies
