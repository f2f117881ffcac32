// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/simulator.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/planner/planner.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunk = kTestChunkBytes;
constexpr int64_t kNsPerChunk = 4096;  // At a byte a nanosecond.
constexpr CostModel kCosts = {.host_to_device = 1e9,
                              .device_to_host = 1e9,
                              .update_elements_per_second = 1e9,  // 1,024 ns a chunk.
                              .copy_latency_ns = 100};

// Two layers in two slots, forward and backward, gradients, the update.
Trace TwoLayers(int64_t compute_ns) {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{kChunk, TensorGroup::kTrainable, 0}, {kChunk, TensorGroup::kTrainable, 0}};
  trace.operators = {{0, 1, compute_ns, 0},
                     {1, 1, compute_ns, 0},
                     {2, 1, compute_ns, 0},
                     {3, 1, compute_ns, 0},
                     {4, 0, 10, 0}};
  trace.uses = {{.tensor = 0}, {.tensor = 1}, {.tensor = 1}, {.tensor = 0}};
  trace.gradient_outs = {{2, 1}, {3, 0}};
  trace.updated = {0, 1};
  return trace;
}

absl::StatusOr<Plan> PlanFor(const RangeTrace& trace, int64_t device_bytes,
                             const CostModel& costs = kCosts, PolicyOptions policy = {}) {
  PlanInputs inputs = {.trace = trace, .budget_bytes = {}, .costs = costs, .policy = policy};
  inputs.budget_bytes[Tier::kDevice] = device_bytes;
  inputs.budget_bytes[Tier::kHost] = std::numeric_limits<int64_t>::max();
  return MakePlan(inputs);
}

TEST(SimulatorTest, TimesOfASmallRoundAreThoseCountedByHand) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(TwoLayers(20'000), kChunk));
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, 2 * kChunk));
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, kCosts, true));
  const Prediction& totals = played.totals;
  EXPECT_EQ(totals.fetch_bytes, 2 * kChunk);  // Both are stale after the update; one fetch each.
  EXPECT_EQ(totals.evict_bytes, 2 * kChunk);  // The gradients.
  EXPECT_EQ(totals.compute_ns, 80'010);
  // The last gradient leaves after the last operator; then the update of the first layer, and its
  // fetch, of which the update's own interval hides 10 ns.
  constexpr int64_t kCopyNs = kNsPerChunk + 100;
  EXPECT_EQ(totals.stall_ns[static_cast<int>(StallCause::kTransfer)], kCopyNs);
  EXPECT_EQ(totals.stall_ns[static_cast<int>(StallCause::kUpdate)], 1'024 + kCopyNs - 10);
  EXPECT_EQ(totals.round_ns, 80'000 + kCopyNs + 1'024 + kCopyNs);
  EXPECT_EQ(totals.device_peak_bytes, 2 * kChunk);
  EXPECT_EQ(totals.device_floor_bytes, kChunk);
}

TEST(SimulatorTest, AnUpdateOfStatesOnNvmeTakesTheDisksTime) {
  Trace on_nvme = TwoLayers(20'000);
  for (TracedTensor& tensor : on_nvme.tensors) tensor.states_on_nvme = true;
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(on_nvme, kChunk));
  CostModel costs = kCosts;
  costs.nvme_write = 1e9;  // A byte a nanosecond: of a bundle two moments.
  costs.nvme_read = 2e9;
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, 2 * kChunk, costs));
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, false));
  constexpr int64_t kCopyNs = kNsPerChunk + 100;
  EXPECT_EQ(played.totals.nvme_read_bytes, 4 * kChunk);
  EXPECT_EQ(played.totals.nvme_write_bytes, 4 * kChunk);
  EXPECT_EQ(played.totals.round_ns, 80'000 + kCopyNs + 2 * kChunk + kCopyNs);
  EXPECT_EQ(played.totals.stall_ns[static_cast<int>(StallCause::kNvme)], 2 * kChunk + kCopyNs - 10);
  EXPECT_EQ(plan.prediction.round_ns, played.totals.round_ns);
}

TEST(SimulatorTest, EventsOfALaneDoNotOverlapAndAccountForTheTotals) {
  int64_t updates = 0, late = 0;  // On DEVICE.
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomTraceOptions options = DrawOptions(seed, seed % 2 == 0);
    if (seed % 4 < 2) options.micro_batches = 1;  // Gradients that no operator uses.
    Trace made = RandomTrace(options, seed).Make();
    const bool on_nvme = seed % 5 == 4;
    for (TracedTensor& tensor : made.tensors) tensor.states_on_nvme = on_nvme;
    ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(made, kChunk));
    const int64_t budget = DeviceFloorBytes(trace) + static_cast<int64_t>(seed % 9) * 3 * kChunk;
    CostModel costs = kCosts;
    if (seed % 10 == 4) costs.nvme_read = 2e8;                  // Slower than updates.
    if (seed % 2 == 0) costs.update_elements_per_second = 1e6;  // Updates go to DEVICE.
    if (seed % 4 == 1) costs.device_to_host = 1e8;              // Gradients are late.
    ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, budget, costs));
    ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, true));
    EXPECT_EQ(played.totals, plan.prediction);
    std::map<Lane, int64_t> free_ns, busy_ns;
    std::map<Lane, int64_t> bytes;
    int64_t stall_ns = 0, operators = 0;
    for (const SimulatedEvent& event : played.events) {
      bytes[event.lane] += event.size_bytes;
      EXPECT_LE(free_ns[event.lane], event.begin_ns);
      EXPECT_LE(event.begin_ns, event.end_ns);
      free_ns[event.lane] = event.end_ns;
      busy_ns[event.lane] += event.end_ns - event.begin_ns;
      if (event.lane != Lane::kCompute) continue;
      EXPECT_EQ(event.subject, operators++);
      stall_ns += event.stall_ns;
    }
    EXPECT_EQ(operators, trace.num_positions());
    EXPECT_EQ(busy_ns[Lane::kCompute], played.totals.compute_ns);
    int64_t stalls_by_cause = 0;
    for (const int64_t ns : played.totals.stall_ns) stalls_by_cause += ns;
    EXPECT_EQ(stall_ns, stalls_by_cause);
    EXPECT_EQ(played.totals.round_ns, stall_ns + played.totals.compute_ns);
    // Bytes by an obvious recount of the plan.
    int64_t fetch_bytes = 0, write_backs = 0, out_bytes = 0;
    std::set<int32_t> kept;
    for (const PlannedUpdate& update : plan.device_updates) kept.insert(update.grad());
    updates += static_cast<int64_t>(kept.size());
    kept.insert(plan.late_gradients.begin(), plan.late_gradients.end());
    late += static_cast<int64_t>(plan.late_gradients.size());
    for (const PlannedFetch& fetch : plan.fetches) {
      if (fetch.blank) continue;
      fetch_bytes += plan.ranges[fetch.range].num_bundles * kChunk;
    }
    for (const PlannedEviction& eviction : plan.evictions) {
      if (eviction.writes_back) write_backs += plan.ranges[eviction.range].num_bundles * kChunk;
    }
    for (const RangeTrace::GradOut& out : trace.gradient_outs) {
      if (kept.count(out.range) == 0) out_bytes += out.size_bytes;
    }
    int64_t updated_chunks = 0;
    for (const int32_t range : plan.updated) updated_chunks += plan.ranges[range].num_bundles;
    for (const int64_t moved : {played.totals.nvme_read_bytes, played.totals.nvme_write_bytes,
                                bytes[Lane::kNvmeRead], bytes[Lane::kNvmeWrite]}) {
      EXPECT_EQ(moved, on_nvme ? NumStateChunks(options.format) * updated_chunks * kChunk : 0);
    }
    EXPECT_EQ(played.totals.fetch_bytes, fetch_bytes);
    EXPECT_GE(played.totals.evict_bytes, write_backs);
    EXPECT_LE(played.totals.evict_bytes, write_backs + out_bytes);
    ASSERT_EQ(played.device_bytes_at_position.size(), static_cast<size_t>(trace.num_positions()));
    EXPECT_EQ(*std::max_element(played.device_bytes_at_position.begin(),
                                played.device_bytes_at_position.end()),
              played.totals.device_peak_bytes);
    EXPECT_LE(played.totals.device_peak_bytes, budget);
  }
  EXPECT_GT(updates, 50);
  EXPECT_GT(late, 5);
}

TEST(SimulatorTest, ARoundIsNotFasterThanItsSlowestPart) {
  for (const int64_t compute_ns : {100, 5'000, 50'000}) {
    ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(TwoLayers(compute_ns), kChunk));
    ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, kChunk));
    ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, kCosts, false));
    EXPECT_GE(played.totals.round_ns, played.totals.compute_ns);
    EXPECT_GE(played.totals.round_ns, played.totals.fetch_bytes);
    EXPECT_TRUE(played.events.empty());
  }
}

// Backward may run ahead of the link by so many gradients and no more.
TEST(SimulatorTest, AnOperatorWaitsWhenTooManyGradientsAreUnderWay) {
  constexpr int kLayers = kMaxGradientsUnderWay + 3;
  constexpr int64_t kComputeNs = 10, kCopyNs = kNsPerChunk + 100;
  Trace layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.tensors.push_back({kChunk, TensorGroup::kTrainable, 0});
    layers.operators.push_back({i, 1, kComputeNs, 0});
    layers.uses.push_back({.tensor = i});
    layers.gradient_outs.push_back({i, i});
    layers.updated.push_back(i);
  }
  layers.operators.push_back({kLayers, 0, 10, 0});
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(layers, kChunk));
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, kLayers * kChunk));
  CostModel costs = kCosts;
  costs.host_to_device = costs.update_elements_per_second = 1e15;  // Only what leaves takes time.
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, true));
  std::vector<int64_t> stalls_ns;
  for (const SimulatedEvent& event : played.events) {
    if (event.lane == Lane::kCompute) stalls_ns.push_back(event.stall_ns);
  }
  // Gradient kMaxGradientsUnderWay is one too many until the first has left; so the operator behind
  // it waits, and each from there on for another one. The update waits for all.
  for (int i = 0; i <= kMaxGradientsUnderWay; ++i) EXPECT_LT(stalls_ns[i], kCopyNs / 2) << i;
  for (int i = kMaxGradientsUnderWay + 1; i < kLayers; ++i) EXPECT_GT(stalls_ns[i], kCopyNs / 2);
  EXPECT_GT(stalls_ns[kLayers], (kMaxGradientsUnderWay - 1) * kCopyNs);
}

// As the executor does it (client/plan/plan_executor.h).
TEST(SimulatorTest, AChunkOfASpanningRangeIsFetchedWhenItsBundleIsCommitted) {
  constexpr int64_t kChunks = 4;
  Trace tensors;
  tensors.phase = "train";
  tensors.tensors = {{kChunks * kChunk, TensorGroup::kTrainable, 0}};
  tensors.operators = {{0, 1, 20'000, 0}, {1, 0, 10, 0}};
  tensors.uses = {{.tensor = 0}};
  tensors.gradient_outs = {{0, 0}};
  tensors.updated = {0};
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(tensors, kChunk));
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, kChunks * kChunk));
  constexpr int64_t kCopyNs = kNsPerChunk + 100;
  const auto stalls = [&](double elements_per_second) {
    CostModel costs = kCosts;
    costs.update_elements_per_second = elements_per_second;
    const absl::StatusOr<Simulation> played = Simulate(trace, plan, costs, false);
    EXPECT_OK(played.status());
    return played->totals.stall_ns;
  };
  // Updates that take a quarter of a copy: behind the first, the link alone is waited for.
  const auto fast = stalls(1e9);
  EXPECT_EQ(fast[static_cast<int>(StallCause::kTransfer)], kChunks * kCopyNs);
  EXPECT_EQ(fast[static_cast<int>(StallCause::kUpdate)], 1'024 + kChunks * kCopyNs - 10);
  // Ones that take twice a copy: behind the last, one copy.
  const auto slow = stalls(1e9 / 8);
  EXPECT_EQ(slow[static_cast<int>(StallCause::kTransfer)], kChunks * kCopyNs);
  EXPECT_EQ(slow[static_cast<int>(StallCause::kUpdate)], kChunks * 8 * 1'024 + kCopyNs - 10);
}

// The last interval is not over when the round begins.
TEST(SimulatorTest, WhatIsFetchedAtTheBeginningCountsInTheLastInterval) {
  Trace tensors;
  tensors.tensors = {{kChunk, TensorGroup::kFrozen, 0}};
  tensors.operators = {{0, 1, 1'000, 0}, {1, 0, 1'000, 7}};
  tensors.uses = {{.tensor = 0}};
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(tensors, kChunk));
  Plan plan;
  plan.fingerprint = trace.fingerprint;
  plan.chunk_bytes = kChunk;
  plan.device_bytes = kChunk + 7;
  plan.ranges = trace.ranges;
  plan.first_use = {0, 1, 1};
  plan.uses = {0};
  plan.fetches = {{0, SlotId(0), -1, 0}};
  plan.evictions = {{0, 0, false}};
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, kCosts, true));
  EXPECT_EQ(played.device_bytes_at_position[1], kChunk + 7);
  EXPECT_EQ(played.totals.device_peak_bytes, kChunk + 7);
}

// Two chunks of DEVICE, one tensor that operator 0 writes, and another that operator 2 reads. What
// leaves takes ten times as long as what comes.
struct Leaving {
  Leaving() {
    Trace tensors;
    tensors.tensors = {{kChunk, TensorGroup::kBuffer, 0}, {kChunk, TensorGroup::kBuffer, 0}};
    tensors.operators = {{0, 1, 1'000, 0}, {1, 0, 1'000, 0}, {1, 1, 1'000, 0}, {2, 0, 100'000, 0}};
    tensors.uses = {{.tensor = 0, .written = true}, {.tensor = 1}};
    trace = *PackTrace(tensors, kChunk);
    plan.fingerprint = trace.fingerprint;
    plan.chunk_bytes = kChunk;
    plan.device_bytes = 2 * kChunk;
    plan.ranges = trace.ranges;
    plan.first_use = {0, 1, 1, 2, 2};
    plan.uses = {0, 1};
    plan.initial = {{0, SlotId(0)}};
    plan.fetches = {{1, SlotId(1), 0, 2}, {0, SlotId(0), 3, 4}};
    plan.evictions = {{0, 0, true}, {1, 2, false}};
  }
  // The wait of the operator at the position.
  SimulatedEvent OperatorAt(int32_t position) {
    const absl::StatusOr<Simulation> played = Simulate(trace, plan, costs, /*with_events=*/true);
    EXPECT_OK(played.status());
    for (const SimulatedEvent& event : played->events) {
      if (event.lane == Lane::kCompute && event.subject == position) return event;
    }
    return {};
  }

  RangeTrace trace;
  Plan plan;
  CostModel costs = {.host_to_device = 1e9, .device_to_host = 1e8, .copy_latency_ns = 0};
  static constexpr int64_t kLeavesNs = 10 * kChunk;
};

TEST(SimulatorTest, NonModelDataWaitsForWhatIsStillBeingWrittenBack) {
  Leaving round;
  EXPECT_EQ(round.OperatorAt(1).stall_ns, 0);
  // Beside it one chunk has room: that which leaves, for the other has not begun to come.
  round.trace.operators[1].non_model_peak_bytes = kChunk;
  round.plan.fetches[0].after = 1;
  EXPECT_EQ(round.OperatorAt(1).stall_ns, 0);
  round.trace.operators[1].non_model_peak_bytes = kChunk + 1;
  const SimulatedEvent waits = round.OperatorAt(1);
  EXPECT_EQ(waits.stall_ns, Leaving::kLeavesNs);
  EXPECT_EQ(waits.cause, StallCause::kRoom);
}

TEST(SimulatorTest, AFetchWaitsForRoomBesideWhatIsStillBeingWrittenBack) {
  Leaving round;
  EXPECT_EQ(round.OperatorAt(2).stall_ns, kChunk - 1'000);
  // In the interval of operator 0 there is room for one chunk, and another slot is of no use.
  round.trace.operators[0].non_model_peak_bytes = kChunk;
  const SimulatedEvent waits = round.OperatorAt(2);
  EXPECT_EQ(waits.stall_ns, Leaving::kLeavesNs + kChunk - 1'000);
  EXPECT_EQ(waits.cause, StallCause::kRoom);
}

// As the executor does it (client/plan/plan_lane.h).
TEST(SimulatorTest, WhatIsCleanedLeavesBehindTheOtherCopiesOfItsLane) {
  Trace tensors;
  tensors.tensors.assign(2, {kChunk, TensorGroup::kBuffer, 0});
  tensors.operators = {{0, 2, 1'000, 0}, {2, 0, 0, 0}, {2, 0, 1'000, kChunk}, {2, 0, 100'000, 0}};
  tensors.uses = {{.tensor = 0, .written = true}, {.tensor = 1, .written = true}};
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(tensors, kChunk));
  Plan plan;
  plan.fingerprint = trace.fingerprint;
  plan.chunk_bytes = kChunk;
  plan.device_bytes = 2 * kChunk;
  plan.ranges = trace.ranges;
  plan.first_use = {0, 2, 2, 2, 2};
  plan.uses = {0, 1};
  plan.initial = {{0, SlotId(0)}, {1, SlotId(1)}};
  plan.fetches = {{0, SlotId(0), 3, 4}, {1, SlotId(1), 3, 4}};
  plan.evictions = {{0, 0, true, /*stays=*/true}, {1, 0, true, /*stays=*/true}, {0, 1}, {1, 2}};
  const CostModel costs = {.host_to_device = 1e9, .device_to_host = 1e8, .copy_latency_ns = 0};
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, false));
  // Operator 2 needs the room of one, which is not free when its own copy has ended.
  EXPECT_EQ(played.totals.stall_ns[static_cast<int>(StallCause::kRoom)], 2 * 10 * kChunk);
}

TEST(SimulatorTest, AnotherTracesPlanIsRefused) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(TwoLayers(1'000), kChunk));
  ASSERT_OK_AND_ASSIGN(Plan plan, PlanFor(trace, 2 * kChunk));
  Trace other_tensors = TwoLayers(1'000);
  other_tensors.uses[1].tensor = 0;
  ASSERT_OK_AND_ASSIGN(const RangeTrace other, PackTrace(other_tensors, kChunk));
  EXPECT_THAT(Simulate(other, plan, kCosts, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not of the trace")));
  plan.fetches.pop_back();
  EXPECT_THAT(Simulate(trace, plan, kCosts, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a plan")));
}

}  // namespace
}  // namespace gemini::policies
