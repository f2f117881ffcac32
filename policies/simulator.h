// SPDX-License-Identifier: Apache-2.0
// Plays a plan, or on-line placement, against the cost model: when every operator, copy and update
// runs, what moves, what waits and why. Times are those of a round in steady state.
// Model:  operators run one after another. Each direction of the link, each direction of the disk and
//         the updates are a queue of their own, served in order, all at once. A copy of b bytes takes
//         copy_latency_ns + b / rate.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/cost_model.h"
#include "gemini/plan.h"
#include "policies/range_trace.h"

namespace gemini::policies {

enum class Lane : uint8_t { kCompute, kFetch, kEvict, kUpdate, kNvmeRead, kNvmeWrite };

struct SimulatedEvent {
  Lane lane = Lane::kCompute;
  int32_t subject = 0;  // Position on kCompute, else the range.
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t stall_ns = 0;  // On kCompute: the wait before begin_ns, for `cause`.
  StallCause cause = StallCause::kTransfer;
};

struct Simulation {
  Prediction totals;
  std::vector<SimulatedEvent> events;             // One round, by begin_ns, if asked for.
  std::vector<int64_t> device_bytes_at_position;  // Chunks and non-model data, if asked for.
};

// INVALID_ARGUMENT: the plan is not of this trace, or CheckPlan.
absl::StatusOr<Simulation> Simulate(const RangeTrace& trace, const Plan& plan, const CostModel& costs,
                                    bool with_events);

// Bytes to and from DEVICE a round of least-recently-used placement on demand, in steady state.
struct MovedBytes {
  int64_t fetch_bytes = 0;
  int64_t evict_bytes = 0;
};
absl::StatusOr<MovedBytes> SimulateLru(const RangeTrace& trace, int64_t device_bytes);

// The fewest bytes that any placement moves to DEVICE a round: chunk by chunk, so that a spanning tensor
// may be there in part and slots need not be adjacent. Not above what any plan achieves.
absl::StatusOr<MovedBytes> FewestBytes(const RangeTrace& trace, int64_t device_bytes);

}  // namespace gemini::policies
