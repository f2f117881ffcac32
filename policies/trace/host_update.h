// SPDX-License-Identifier: Apache-2.0
// What the update of a param range in HOST takes: the updater's time, or the disk's where the home
// of its optimizer states is NVME, for reading, updating and writing overlap there
// (client/host/chunk_mover.h).
// Units: nanoseconds, bytes.
#pragma once
#include <cstdint>

#include "gemini/cost_model.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Of optimizer states that the update reads from NVME, and as many that it writes there: 0 where
// their home is HOST.
int64_t StateBytesOnNvme(const RangeTrace& trace, const PlannedRange& range);

// How long one update of the range after another takes. The rates are > 0.
int64_t HostUpdateNs(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs);

// Whether that is what the disk takes.
bool WaitsForNvme(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs);

}  // namespace gemini::policies
