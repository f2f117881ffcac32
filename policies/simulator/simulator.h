// SPDX-License-Identifier: Apache-2.0
// Plays a plan, or on-line placement, against the cost model: when every operator, copy and update
// runs, what moves, what waits and why. Times are those of a round in steady state.
// Model: operators run one after another. Each direction of the link, each direction of the disk
// and the updates are queues of their own, served in order, all at once. Ranges are copied chunk by
// chunk; a copy of b bytes takes copy_latency_ns + b / rate. They are updated bundle by bundle, and
// a chunk may be fetched when its bundle is committed. A move that may begin when an operator has
// ended begins at the end of its interval; for the update it begins at the interval's beginning,
// where the intent is. A gradient leaves at the end of its interval, over the link unless its range
// is on DEVICE. The next operator waits while more than kMaxGradientsUnderWay have not left. The
// update waits for everything that leaves, and for the updates of the round before. Behind it
// follow trust ratios, as compute, and the updates on DEVICE, while the updates in HOST have begun.
// Of these, the ones whose late gradients have arrived go first, as they arrived, then the others
// in the plan's order. When all that are left await their gradients, they wait.
// HOST: where it lacks room for all chunks, every move also waits for what it uses there
// (policies/simulator/host_playback.h). The cause of these waits is kNvme.
// Units: an fp32 parameter is an element of CostModel::update_elements_per_second.
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
  // A position on kCompute, a chunk (or the first of some) on the lanes of NVME, else the range of
  // the plan.
  int32_t subject = 0;
  int32_t space = 0;       // The chunk's.
  int64_t size_bytes = 0;  // The copy's.
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

// Simulates the plan. `trace` is as PackTrace made it, whatever gradients the plan keeps on DEVICE.
// `host_bytes` is HOST's budget; if it is given, the times and bytes of NVME are those of the
// plan's prediction. INVALID_ARGUMENT: the plan is not of this trace, or as CheckPlan.
absl::StatusOr<Simulation> Simulate(const RangeTrace& trace, const Plan& plan,
                                    const CostModel& costs, bool with_events,
                                    int64_t host_bytes = kUnlimitedBytes);

}  // namespace gemini::policies
