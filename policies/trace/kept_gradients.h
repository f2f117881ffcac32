// SPDX-License-Identifier: Apache-2.0
// A round that keeps some gradients on DEVICE until its last operator, the update
// (gemini/plan/plan.h): those of ranges that it updates there, and late ones, which it only counts
// into the norm there. Which ones it may keep, and the trace of that round, from the one of a round
// that keeps none.
// Changes: masters and moments of each range that is updated on DEVICE are ranges of their own,
//         behind all others. The last operator uses them, the parameters and the gradients, and
//         writes all; and it uses the late gradients, as written there for they have not left.
//         Gradients that left DEVICE are uses of their range where they are complete, and of the
//         next position, for they come when the interval ends and what leaves after that operator
//         has left; nobody pins it there. `updated` has the others and the late ones. Times stay
//         those of the round that was measured: LastOperatorNs is to be added.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// What the squares of a gradient take of the time of its update on DEVICE. An estimate: in fp32
// that streams parameters, gradients and both moments, this the gradients alone. Of 16 bits it is
// less.
inline constexpr double kSquaresByUpdate = 0.25;
// Likewise what the squares of a trust ratio take, in HOST or on DEVICE: all that LAMB's update
// reads, and nothing is written. Of LARS it is less.
inline constexpr double kTrustByUpdate = 0.55;

// Those of trace.updated, in its order, that may be updated on DEVICE: of spaces that
// UpdatesInPlace, with their states in HOST, whose tensors' gradients leave before the update, none
// twice, and whose gradients no operator uses and parameters none writes. `trace` keeps none.
std::vector<int32_t> MayKeepGradients(const RangeTrace& trace);

// Whether the gradients of these may be late: of all of them, or of none.
bool MayBeLate(const RangeTrace& trace, absl::Span<const int32_t> keepable);

// The gradients of `updated`, which are updated on DEVICE, and of `late`, which MayBeLate, are
// kept: both are some of MayKeepGradients(trace), none is in both, and their order is of no
// account. O(size).
RangeTrace WithKeptGradients(const RangeTrace& trace, absl::Span<const int32_t> updated,
                             absl::Span<const int32_t> late);
RangeTrace WithKeptGradients(const RangeTrace& trace,
                             const Plan& plan);  // Those that the plan keeps.

// How long trust ratios take, in HOST and on DEVICE, before any update begins. Rates are > 0 where
// there are any, as below.
int64_t TrustRatioNs(const RangeTrace& trace, const CostModel& costs);

// How long the last operator takes beside what it was measured to: for trust ratios, updates on
// DEVICE, and the squares of late gradients.
int64_t LastOperatorNs(const RangeTrace& trace, const CostModel& costs);

}  // namespace gemini::policies
