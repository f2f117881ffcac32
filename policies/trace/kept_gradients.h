// SPDX-License-Identifier: Apache-2.0
// Decides which gradients a round may keep on DEVICE until its last operator, the update
// (gemini/plan/plan.h), and derives the trace of that round from the trace of one that keeps none.
// Kept gradients are those of ranges that are updated on DEVICE, and late ones, which are only
// summed into the norm there.
// Changes: masters and moments of each range that is updated on DEVICE become ranges of their own,
// behind all others. The last operator uses and writes them, the parameters and the gradients. It
// also uses the late gradients, as written because they have not left. A gradient that left DEVICE
// becomes a use of its range at the position where it is complete and at the next one, because it
// arrives when the interval ends, and what leaves after that operator has then left. No operator
// pins it there. `updated` has the other ranges and the late ones. Times stay those of the measured
// round; LastOperatorNs is to be added.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// The time for the squares of a gradient, as a share of the time of its update on DEVICE. It is an
// estimate: in fp32 the update streams parameters, gradients and both moments, and the squares only
// the gradients. For 16-bit formats it is less.
inline constexpr double kSquaresByUpdate = 0.25;
// The same share for the squares of a trust ratio, in HOST or on DEVICE: they read all that LAMB's
// update reads and write nothing. For LARS it is less.
inline constexpr double kTrustByUpdate = 0.55;

// Returns those of trace.updated, in its order, that may be updated on DEVICE. Their space
// UpdatesInPlace and has its states in HOST. The gradients of their tensors leave before the
// update, none of them twice. No operator uses these gradients or writes these parameters. `trace`
// keeps none.
std::vector<int32_t> MayKeepGradients(const RangeTrace& trace);

// Returns whether the gradients of these ranges may be late: of all of them, or of none.
bool MayBeLate(const RangeTrace& trace, absl::Span<const int32_t> keepable);

// Returns the trace of a round that keeps the gradients of `updated`, which are updated on DEVICE,
// and of `late`, which MayBeLate. Both are subsets of MayKeepGradients(trace) without a common
// element; their order does not matter. O(size).
RangeTrace WithKeptGradients(const RangeTrace& trace, absl::Span<const int32_t> updated,
                             absl::Span<const int32_t> late);
RangeTrace WithKeptGradients(const RangeTrace& trace,
                             const Plan& plan);  // Those that the plan keeps.

// Returns how long trust ratios take, in HOST and on DEVICE, before any update begins. The rates
// are > 0 where there are any, here and below.
int64_t TrustRatioNs(const RangeTrace& trace, const CostModel& costs);

// Returns how long the last operator takes beyond its measured time: for trust ratios, updates on
// DEVICE, and the squares of late gradients.
int64_t LastOperatorNs(const RangeTrace& trace, const CostModel& costs);

}  // namespace gemini::policies
