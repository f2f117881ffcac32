// SPDX-License-Identifier: Apache-2.0
// Finds the DEVICE floor of a round: the budget below which one of its operators cannot run,
// however chunks are placed, for it pins all its chunks at one time beside the data that is no
// chunk's.
// Units: bytes.
// Pure:  no I/O, no clock.
#pragma once
#include "gemini/device_shortage.h"
#include "policies/trace/range_trace.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

// Returns what the operator that needs the most needs. `trace` is that of `step`, packed. A plan
// needs more where an operator's interval has its peak behind the operator, because it lets chunks
// stay through the interval (policies/planner/planner.h).
DeviceNeed FindDeviceFloor(const policies::RangeTrace& trace, const NamedTrace& step);

}  // namespace gemini::trainer
