// SPDX-License-Identifier: Apache-2.0
// A round whose last operator updates some ranges on DEVICE (gemini/plan.h): which ones it may, and the
// trace of that round, from the one of a round that updates all in HOST.
// Changes: the moments of each such range are ranges of their own, behind all others. The last operator
//         uses them, the parameters and the gradients, and writes all four. Gradients that left DEVICE
//         are uses of their range where they are complete; nobody pins it there. `updated` has the others.
//         Times stay those of the round that was measured: DeviceUpdateNs is to be added.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/cost_model.h"
#include "policies/range_trace.h"

namespace gemini::policies {

// Of a parameter, as CostModel counts them.
inline constexpr int64_t kElementBytes = 4;

// Of trace.updated, in its order: those whose tensors' gradients leave before the update, none twice, and
// whose gradients no operator uses and parameters none writes. `trace` updates all in HOST.
std::vector<int32_t> UpdatableOnDevice(const RangeTrace& trace);

// `params` are some of UpdatableOnDevice(trace); their order is of no account. O(size).
RangeTrace WithDeviceUpdates(const RangeTrace& trace, absl::Span<const int32_t> params);

// How long the last operator takes for the updates on DEVICE; the rate is > 0 where there are any.
int64_t DeviceUpdateNs(const RangeTrace& trace, const CostModel& costs);

}  // namespace gemini::policies
