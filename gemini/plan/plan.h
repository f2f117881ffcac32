// SPDX-License-Identifier: Apache-2.0
// Defines a plan: a trace compiled to what moves when, as fetches into slots and evictions, by
// position. client/plan/plan_executor.h executes it round after round, and the simulator plays it.
// Position: as in gemini/plan/trace.h, 0 to N - 1. A fetch with needed_at p brings a range that
// operator p uses; p >= N stands for operator p - N of the next round. The fetch's `after` a is
// before that, and means:
//   a < needed_at   It may begin when operator a has ended: its pins are dropped, or, for the
//                   update, its intent is recorded. -1: when the round begins.
//   a == needed_at  On demand: it begins when operator a asks, because the interval before has
//                   no room.
// An eviction's `after` a is the last operator that uses the range; the eviction begins when that
// operator has ended.
// Fetches: begin in their order. A fetch begins when its `after` has passed and its slots are free.
// If its range is being written back, it also waits for that; if the range awaits its update, it
// waits for the commit.
// Evictions: begin in their order, independently of the fetches. One without a write-back frees its
// slots at once, whatever else is being written, unless it is BehindWriteBacks. One with a
// write-back frees them when its copy ends. An allocation that finds no room waits for the
// evictions whose `after` has passed. The plan is left only if that was not enough.
// Update: if the last operator stands for the update, all evictions with a write-back of what it
// reads in HOST are before it, except those of late gradients. When it has ended, the DEVICE copies
// of `updated` are dropped without being listed as evictions. The last operator uses the ranges of
// each of device_updates and changes parameters and moments in place. Their copies in HOST are then
// those of the version before. So they are written back after it, by an eviction or by one that
// `stays`, before the next round's last operator.
// Gradients: each is copied to HOST when its interval ends. At most kMaxGradientsUnderWay are in
// flight; an operator whose gradient would be one more waits for the oldest.
// Kept gradients: a gradient of device_updates or of late_gradients stays in its range on DEVICE,
// for which a blank fetch has made room. The fetch's needed_at is the position of the range's first
// gradient, and the range counts as used at each position of one. `uses` has the range at the last
// position alone, because no operator pins it before. After the update it is written back and
// evicted. If it has to be evicted earlier, it is written back, too, and another fetch brings it
// back. The update in HOST of a late gradient's bundles waits for its write-back.
// Budget: a range takes its slots from the interval of its `after` to that of its eviction's, both
// included. In each interval all slots so taken and its non-model peak fit into device_bytes. A
// slot that passes from one range to another in an interval counts once.
// Circular: at each round's beginning the ranges of `initial` are on DEVICE in these slots, or
// being fetched. The executor arranges that before the first round, and each round arranges it for
// the next. So a fetch with needed_at >= N is of a range of `initial`.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gemini/chunk_kind.h"
#include "gemini/ids.h"
#include "gemini/policy_options.h"
#include "gemini/stall_cause.h"

namespace gemini {

// How many gradients may be in flight: those of a transformer's block, which are complete in
// bursts. With 4, backward waited for the link for a tenth of its time (docs/benchmarks.md).
inline constexpr int64_t kMaxGradientsUnderWay = 12;

// What is pinned together: one chunk, or the consecutive chunks of one tensor that spans them.
struct PlannedRange {
  int32_t space = 0;
  BundleId first;
  int64_t num_bundles = 1;
  ChunkKind kind = ChunkKind::kParam;
  bool operator==(const PlannedRange&) const = default;
};

struct PlannedFetch {
  int32_t range = 0;
  SlotId slot;  // The first of num_bundles adjacent ones.
  int32_t after = -1;
  int32_t needed_at = 0;
  bool blank = false;  // Moves no bytes: it makes room for a gradient.
  bool operator==(const PlannedFetch&) const = default;
};

struct PlannedEviction {
  int32_t range = 0;
  int32_t after = -1;
  bool writes_back = false;  // As the trace has it; dirty ranges are written back in any case.
  bool stays = false;        // Is written back and stays; operators may read it meanwhile.
  bool operator==(const PlannedEviction&) const = default;
};

// The ranges of the same bundles, which the last operator updates on DEVICE: one of each kind of
// chunk that they have (TrainableKinds).
struct PlannedUpdate {
  static constexpr int32_t kNone = -1;
  KindMap<int32_t> ranges = {.values = {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone}};

  int32_t param() const { return ranges[ChunkKind::kParam]; }
  int32_t grad() const { return ranges[ChunkKind::kGrad]; }
  // In the order of kinds: all ranges that there are, and those except the gradient's.
  std::vector<int32_t> used() const;
  std::vector<int32_t> changed() const;
  bool operator==(const PlannedUpdate&) const = default;
};

struct PlannedResident {
  int32_t range = 0;
  SlotId slot;
  bool operator==(const PlannedResident&) const = default;
};

// A use of a chunk in HOST: its bytes are read or written there.
struct PlannedHostUse {
  int32_t space = 0;
  ChunkId chunk;
  bool overwrites = false;  // All its bytes are written: they need not be there before.
  int64_t at_ns = 0;        // Predicted, from the round's beginning.
  bool operator==(const PlannedHostUse&) const = default;
};

// What one round in steady state is predicted to do.
struct Prediction {
  int64_t round_ns = 0;
  int64_t compute_ns = 0;
  std::array<int64_t, kNumStallCauses> stall_ns = {};  // By StallCause.
  int64_t fetch_bytes = 0;                             // To DEVICE.
  int64_t evict_bytes = 0;                             // From DEVICE: write-backs and gradients.
  int64_t nvme_read_bytes = 0;
  int64_t nvme_write_bytes = 0;
  int64_t device_peak_bytes = 0;   // Chunks and non-model data.
  int64_t device_floor_bytes = 0;  // Largest set one operator pins, beside its non-model data.
  bool operator==(const Prediction&) const = default;
};

struct Plan {
  std::string phase;
  uint64_t fingerprint = 0;  // The trace's.
  PolicyOptions policy;      // The one asked for; `made_by` says which one won.
  std::string made_by;
  int64_t chunk_bytes = 0;
  int64_t device_bytes = 0;  // The budget that it was made for.
  std::vector<PlannedRange> ranges;
  // The ranges that each operator pins, without repeats: those of position i are uses[first_use[i]
  // .. first_use[i + 1]). At the update's position they are those of device_updates, one after the
  // other, in the order of their kinds, then late_gradients.
  std::vector<int32_t> first_use;  // num_positions + 1 entries.
  std::vector<int32_t> uses;
  // Param ranges that are updated in HOST and become stale on DEVICE, in the update's order, and
  // those that are updated on DEVICE. If both are empty the round has no update.
  std::vector<int32_t> updated;
  std::vector<PlannedUpdate> device_updates;
  // Grad ranges of some of `updated`. They are still on DEVICE when the update begins, and leave
  // beside the next round's operators.
  std::vector<int32_t> late_gradients;
  std::vector<PlannedResident> initial;
  std::vector<PlannedFetch> fetches;
  std::vector<PlannedEviction> evictions;
  // The uses of a round, by at_ns, as a circle. They decide which chunks on NVME are read ahead and
  // which leave HOST when it lacks room (policies/simulator/host_foresight.h). Empty if HOST has
  // room for all chunks.
  std::vector<PlannedHostUse> host_uses;
  // The time to read a chunk from NVME, and to spill another for it.
  int64_t host_read_ns = 0;
  Prediction prediction;

  int32_t num_positions() const { return static_cast<int32_t>(first_use.size()) - 1; }
  bool ends_with_update() const { return !updated.empty() || !device_updates.empty(); }
  bool operator==(const Plan&) const = default;
};

// Checks everything that an executor relies on. Indices and positions are in range, slots are
// inside the budget, every use is resident, no two ranges share a slot, nothing is evicted before
// its last use or fetched while it is there. Each list is in an order in which it cannot wait for
// itself. What was updated on DEVICE is written back before it is dropped or updated again, and the
// round ends as it begins. INVALID_ARGUMENT names the first that is wrong. The check does not know
// non-model data, nor where gradients are complete: a fetch of a gradient that stays for the update
// counts as its use at needed_at. O(size log size).
absl::Status CheckPlan(const Plan& plan);

// Returns, by eviction, whether it is made after all write-backs that are listed before it: those
// that write back, and those of ranges that stayed when they were written back last, maybe in the
// round before. `plan` has passed CheckPlan.
std::vector<bool> BehindWriteBacks(const Plan& plan);

}  // namespace gemini
