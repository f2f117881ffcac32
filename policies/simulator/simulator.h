// SPDX-License-Identifier: Apache-2.0
// Predicts what a plan does on this machine, by simulating it against the cost model: when every
// operator, copy and update runs, what moves, what stalls and why. Times are those of a round in
// steady state.
// Queues: operators run one after another. Each direction of the link, each direction of the disk,
// and the updates in HOST are queues of their own. All queues run at once, each in its order.
// Copies: a range is copied chunk by chunk. A copy of b bytes takes copy_latency_ns + b / rate.
// Moves: one that may begin when an operator has ended begins at the end of that interval. For the
// update it begins at the beginning of the interval, where the intent is recorded.
// Room: what is written back holds its slots until it has left. So an operator whose non-model data
// grows waits, and so does a fetch, until what was due before has left.
// Gradients: one that its range on DEVICE does not keep is copied to HOST at the end of its
// interval. The next operator stalls while more than kMaxGradientsUnderWay are in flight.
// Update: it waits for all copies to HOST, and for the updates of the round before. Then trust
// ratios are computed, then the updates on DEVICE, while the updates in HOST begin. In HOST, ranges
// whose late gradients have arrived are updated first, in the order of arrival, then the others in
// the plan's order. When only ranges whose gradients are in flight are left, the queue waits for
// them.
// Commits: a range is updated bundle by bundle. A chunk may be fetched when its bundle is
// committed.
// HOST: where it lacks room for all chunks, every move also waits for what it uses there
// (policies/simulator/host_playback.h). The cause of these stalls is kNvme.
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
