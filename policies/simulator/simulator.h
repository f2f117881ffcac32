// SPDX-License-Identifier: Apache-2.0
// Plays a plan, or on-line placement, against the cost model: when every operator, copy and update
// runs, what moves, what waits and why. Times are those of a round in steady state.
// Model:  operators run one after another. Each direction of the link, each direction of the disk
//         and the updates are a queue of their own, served in order, all at once. Ranges are copied
//         chunk by chunk, each copy of b bytes taking copy_latency_ns + b / rate, and updated
//         bundle by bundle: a chunk comes when its bundle is committed. What may begin when an
//         operator has ended begins at the end of its interval, but for the update, whose intent is
//         at the beginning of its own. A gradient leaves at the end of its interval, over the link
//         unless its range is on DEVICE; the next operator waits while more than
//         kMaxGradientsUnderWay have not left. The update waits for all that leaves, and for the
//         updates of the round before. Trust ratios come behind it, as compute, then what it
//         updates on DEVICE, while the updates in HOST have begun. Of those the ones whose late
//         gradients have arrived go first, as they arrived, then the others in the plan's order;
//         when only some are left that await their gradients, they wait.
// HOST:   where it lacks room for all chunks, whatever moves waits for what it uses there, too,
//         which comes and goes as policies/simulator/host_playback.h says. Those that wait for that
//         do so for kNvme.
// Units:  an fp32 parameter is an element of CostModel::update_elements_per_second.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "policies/trace/moved_bytes.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

enum class Lane : uint8_t { kCompute, kFetch, kEvict, kUpdate, kNvmeRead, kNvmeWrite };

struct SimulatedEvent {
  Lane lane = Lane::kCompute;
  // Position on kCompute, chunk (or first of some) on those of NVME, else the range of the plan.
  int32_t subject = 0;
  int32_t space = 0;       // Of a chunk.
  int64_t size_bytes = 0;  // Of copies.
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

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

// `trace` as PackTrace made it, whatever gradients the plan keeps on DEVICE; `host_bytes` is HOST's
// budget, in which case the times and bytes of NVME are those of the plan's prediction.
// INVALID_ARGUMENT: the plan is not of this trace, or CheckPlan.
absl::StatusOr<Simulation> Simulate(const RangeTrace& trace, const Plan& plan,
                                    const CostModel& costs, bool with_events,
                                    int64_t host_bytes = kUnlimitedBytes);

}  // namespace gemini::policies
