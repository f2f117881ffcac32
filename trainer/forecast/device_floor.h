// SPDX-License-Identifier: Apache-2.0
// The DEVICE floor of a round: the budget below which one of its operators cannot run, however
// chunks are placed, for it pins all its chunks at one time beside the data that is no chunk's.
// Units: bytes.
// Pure:  no I/O, no clock.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gemini/device_shortage.h"
#include "policies/trace/range_trace.h"

namespace gemini::trainer {

// Returns what the operator that needs the most needs. `operator_names`: by position of the trace.
DeviceNeed FindDeviceFloor(const policies::RangeTrace& trace,
                           absl::Span<const std::string> operator_names);

}  // namespace gemini::trainer
