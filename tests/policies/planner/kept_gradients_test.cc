// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/kept_gradients.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/planner/planner.h"
#include "policies/planner/trace_planner.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/next_uses.h"
#include "tests/gemini/plan/planned_update.h"
#include "tests/policies/block_trace.h"
#include "tests/policies/planner/layers_trace.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kChunk = kTestChunkBytes;

Trace Layers(int32_t num_layers, int64_t compute_ns) {
  return LayersTrace(num_layers, kChunk, compute_ns);
}

std::vector<int32_t> UsedAt(const RangeTrace& trace, int32_t position) {
  std::vector<int32_t> ranges;
  for (const RangeUse& use : trace.uses_of(position)) ranges.push_back(use.range);
  return ranges;
}

TEST(KeptGradientsTest, TheUpdateUsesFourRangesAndGradientsAreUsesOfTheirs) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(2, 100), kChunk));
  const RangeTrace changed = WithKeptGradients(trace, {0}, {});
  ASSERT_EQ(changed.ranges.size(), 6u);
  EXPECT_EQ(changed.ranges[4], (PlannedRange{0, BundleId(0), 1, ChunkKind::kExpAvg}));
  EXPECT_EQ(changed.ranges[5], (PlannedRange{0, BundleId(0), 1, ChunkKind::kExpAvgSq}));
  EXPECT_THAT(changed.device_updates, ElementsAre(Fp32Update(0, 4, 5, 1)));
  EXPECT_THAT(changed.updated, ElementsAre(2));
  EXPECT_THAT(UsedAt(changed, 2), ElementsAre(2));  // Its gradient leaves as before.
  EXPECT_THAT(UsedAt(changed, 3), ElementsAre(0, 1));
  EXPECT_THAT(UsedAt(changed, 4), ElementsAre(0, 4, 5, 1));
  ASSERT_EQ(changed.gradient_outs.size(), 1u);
  EXPECT_EQ(changed.gradient_outs[0].range, 3);
  const PinnedUses pinned(changed);
  EXPECT_THAT(pinned.first_use, ElementsAre(0, 1, 2, 3, 4, 8));
  EXPECT_THAT(pinned.uses, ElementsAre(0, 2, 2, 0, 0, 4, 5, 1));
  for (const RangeUse& use : changed.uses_of(4)) EXPECT_TRUE(use.written && use.is_pinned);
  EXPECT_EQ(LastOperatorNs(changed, {.device_update_elements_per_second = 1e9}), kChunk / 4);
}

TEST(KeptGradientsTest, AnUpdateHasARangeOfEachKindOfChunkThatItsSpaceHas) {
  for (const ElementType element : kAllElementTypes) {
    for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
      const StateFormat format = {.element = element, .optimizer = optimizer};
      Trace layers = Layers(2, 100);
      for (TracedTensor& tensor : layers.tensors) tensor.format = format;
      ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(layers, kChunk));
      EXPECT_THAT(MayKeepGradients(trace), ElementsAre(0, 2));
      const RangeTrace changed = WithKeptGradients(trace, {0}, {});
      const PlannedUpdate& update = changed.device_updates.at(0);
      const KindList kinds = TrainableKinds(format);
      for (const ChunkKind kind : kAllChunkKinds) {
        const int32_t range = update.ranges[kind];
        ASSERT_EQ(range >= 0, std::find(kinds.begin(), kinds.end(), kind) != kinds.end());
        if (range < 0) continue;
        EXPECT_EQ(changed.ranges.at(range), (PlannedRange{0, BundleId(0), 1, kind}));
      }
      EXPECT_EQ(UsedAt(changed, 4), update.used());
      EXPECT_EQ(update.changed().size() + 1, update.used().size());
      EXPECT_EQ(LastOperatorNs(changed, {.device_update_elements_per_second = 1e9}),
                kChunk / ElementBytes(element));
    }
  }
}

TEST(KeptGradientsTest, TheUpdateUsesLateGradientsBehindWhatItUpdatesOnDevice) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(3, 100), kChunk));
  const RangeTrace changed = WithKeptGradients(trace, {2}, {4, 0});
  ASSERT_EQ(changed.ranges.size(), 8u);
  EXPECT_THAT(changed.device_updates, ElementsAre(Fp32Update(2, 6, 7, 3)));
  EXPECT_THAT(changed.late_gradients, ElementsAre(1, 5));
  EXPECT_THAT(changed.updated, ElementsAre(0, 4));
  EXPECT_THAT(changed.gradient_outs, IsEmpty());
  EXPECT_THAT(UsedAt(changed, 3), ElementsAre(4, 5));
  EXPECT_THAT(UsedAt(changed, 4), ElementsAre(2, 3, 5));  // Where the one before comes.
  EXPECT_THAT(UsedAt(changed, 5), ElementsAre(0, 1, 3));
  EXPECT_THAT(UsedAt(changed, 6), ElementsAre(2, 6, 7, 3, 1, 5));
  const PinnedUses pinned(changed);
  EXPECT_THAT(pinned.first_use, ElementsAre(0, 1, 2, 3, 4, 5, 6, 12));
  for (const RangeUse& use : changed.uses_of(6)) EXPECT_TRUE(use.written && use.is_pinned);
  EXPECT_TRUE(changed.keeps_gradients());
  EXPECT_TRUE(WithKeptGradients(trace, {}, {0}).keeps_gradients());
  EXPECT_FALSE(trace.keeps_gradients());
  // An update, and the squares of two.
  EXPECT_EQ(LastOperatorNs(changed, {.device_update_elements_per_second = 1e9}),
            kChunk / 4 + 2 * kChunk / 16);
}

// Two tensors in a chunk, whose gradients come at one position or at two.
TEST(KeptGradientsTest, AGradientRangeIsUsedOnceAPosition) {
  Trace tensors = Layers(2, 100);
  tensors.tensors[0].size_bytes = tensors.tensors[1].size_bytes = 256;
  ASSERT_OK_AND_ASSIGN(const RangeTrace two, PackTrace(tensors, kChunk));
  EXPECT_THAT(UsedAt(WithKeptGradients(two, {0}, {}), 2), ElementsAre(0, 1));
  EXPECT_THAT(UsedAt(WithKeptGradients(two, {0}, {}), 3), ElementsAre(0, 1));
  tensors.gradient_outs[0].position = 3;
  ASSERT_OK_AND_ASSIGN(const RangeTrace one, PackTrace(tensors, kChunk));
  EXPECT_THAT(UsedAt(WithKeptGradients(one, {0}, {}), 2), ElementsAre(0));
  EXPECT_THAT(UsedAt(WithKeptGradients(one, {0}, {}), 3), ElementsAre(0, 1));
}

TEST(KeptGradientsTest, WithoutAnyTheTraceStaysAsItWas) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(3, 100), kChunk));
  const RangeTrace changed = WithKeptGradients(trace, {}, {});
  EXPECT_EQ(changed.ranges, trace.ranges);
  EXPECT_EQ(changed.updated, trace.updated);
  EXPECT_EQ(changed.gradient_outs.size(), trace.gradient_outs.size());
  EXPECT_EQ(PinnedUses(changed).uses, PinnedUses(trace).uses);
}

TEST(KeptGradientsTest, WhatAnOperatorUsesOrLacksAGradientIsNotUpdatedOnDevice) {
  const auto updatable = [](const Trace& tensors) {
    const absl::StatusOr<RangeTrace> trace = PackTrace(tensors, kChunk);
    EXPECT_OK(trace.status());
    return MayKeepGradients(*trace);
  };
  EXPECT_THAT(updatable(Layers(3, 100)), ElementsAre(0, 2, 4));
  Trace on_nvme = Layers(3, 100);
  for (TracedTensor& tensor : on_nvme.tensors) tensor.states_on_nvme = true;
  EXPECT_THAT(updatable(on_nvme), IsEmpty());
  Trace adds = Layers(3, 100);  // As with accumulation.
  adds.uses[3] = {.tensor = 1, .kind = ChunkKind::kGrad, .written = true};
  EXPECT_THAT(updatable(adds), ElementsAre(0, 4));
  Trace without_gradient = Layers(3, 100);
  without_gradient.gradient_outs.erase(without_gradient.gradient_outs.begin());
  EXPECT_THAT(updatable(without_gradient), ElementsAre(0, 2));
  Trace late = Layers(3, 100);
  late.gradient_outs.back().position = late.num_positions() - 1;
  EXPECT_THAT(updatable(late), ElementsAre(2, 4));
  Trace written = Layers(3, 100);
  written.uses[2].written = true;
  EXPECT_THAT(updatable(written), ElementsAre(0, 2));
  Trace other_order = Layers(3, 100);
  other_order.updated = {2, 0};
  EXPECT_THAT(updatable(other_order), ElementsAre(4, 0));
  // Whatever the policy.
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(adds, kChunk));
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, 99 * kChunk, {}, {PolicyKind::kCuda}));
  EXPECT_EQ(plan.device_updates.size(), 2u);
  EXPECT_THAT(plan.updated, ElementsAre(2));
}

// Slow updates in HOST: a fast DEVICE makes all of them, a slow one none.
TEST(KeptGradientsTest, WithRoomForAllTheFasterPlaceUpdates) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(8, 20'000), kChunk));
  CostModel costs = {.host_to_device = 1e9,
                     .device_to_host = 1e9,
                     .update_elements_per_second = 2e7,
                     .device_update_elements_per_second = 1e9,
                     .copy_latency_ns = 0};
  const int64_t room = 64 * kChunk;
  ASSERT_OK_AND_ASSIGN(const Plan fast, PlanFor(trace, room, costs));
  EXPECT_EQ(fast.device_updates.size(), 8u);
  EXPECT_THAT(fast.updated, IsEmpty());
  EXPECT_EQ(fast.made_by, "belady, 8 updates on DEVICE");
  EXPECT_EQ(fast.prediction.fetch_bytes, 0);  // All stays but gradients, which come blank.
  EXPECT_EQ(fast.prediction.evict_bytes, 4 * 8 * kChunk);  // Each range, once.
  EXPECT_EQ(fast.prediction.compute_ns, 16 * 20'000 + 10 + 8 * kChunk / 4);
  costs.device_update_elements_per_second = 1e6;
  ASSERT_OK_AND_ASSIGN(const Plan slow, PlanFor(trace, room, costs));
  EXPECT_THAT(slow.device_updates, IsEmpty());
  EXPECT_EQ(slow.updated.size(), 8u);
  EXPECT_LT(fast.prediction.round_ns, slow.prediction.round_ns);
  costs.device_update_elements_per_second = 0;
  for (const PolicyKind kind : {PolicyKind::kAuto, PolicyKind::kCuda}) {
    ASSERT_OK_AND_ASSIGN(const Plan none, PlanFor(trace, room, costs, {kind}));
    EXPECT_THAT(none.device_updates, IsEmpty());
  }
}

TEST(KeptGradientsTest, StaticUpdatesTheFractionOnDeviceOrSaysWhatItLacks) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(8, 20'000), kChunk));
  const auto plan_for = [&](double fraction, int64_t chunks) {
    return PlanFor(trace, chunks * kChunk, {}, {PolicyKind::kStatic, 0, fraction});
  };
  ASSERT_OK_AND_ASSIGN(const Plan quarter, plan_for(0.25, 10));
  EXPECT_THAT(quarter.device_updates,
              ElementsAre(Fp32Update(0, 16, 17, 1), Fp32Update(2, 18, 19, 3)));
  EXPECT_EQ(quarter.made_by, "static 0, 2 updates on DEVICE");
  // Parameters and moments of both stay.
  std::set<int32_t> stay;
  for (const PlannedEviction& eviction : quarter.evictions) {
    if (eviction.stays) stay.insert(eviction.range);
  }
  EXPECT_THAT(stay, ElementsAre(0, 2, 16, 17, 18, 19));
  EXPECT_THAT(plan_for(1, 10), StatusIs(absl::StatusCode::kResourceExhausted,
                                        AllOf(HasSubstr("operator 16"), HasSubstr("(131072 bytes)"),
                                              HasSubstr("the update on DEVICE"))));
  EXPECT_THAT(plan_for(-0.1, 10), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(plan_for(1.1, 10), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK_AND_ASSIGN(const Plan cpu, PlanFor(trace, 64 * kChunk, {}, {PolicyKind::kCpu}));
  EXPECT_THAT(cpu.device_updates, IsEmpty());
}

// One layer: what a round with its update on DEVICE does, counted by hand.
TEST(KeptGradientsTest, TimesOfASmallRoundAreThoseCountedByHand) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(1, 10'000), kChunk));
  const CostModel costs = {.host_to_device = 1e9,
                           .device_to_host = 1e9,
                           .device_update_elements_per_second = 1e9,
                           .copy_latency_ns = 100};
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, 4 * kChunk, costs, {PolicyKind::kCuda}));
  EXPECT_THAT(plan.fetches, ElementsAre(PlannedFetch{1, SlotId(plan.fetches[0].slot), 1, 1, true}));
  EXPECT_EQ(plan.evictions.front(), (PlannedEviction{1, 2, true, false}));
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, true));
  EXPECT_EQ(played.totals, plan.prediction);
  // Four copies out behind the update take 4 x 4,196 ns, of which forward, backward and the
  // update's own operator hide all. The gradient's room is free when backward asks, before the
  // other three have left.
  EXPECT_EQ(played.totals.round_ns, 2 * 10'000 + 1'024 + 10);
  EXPECT_EQ(played.totals.evict_bytes, 4 * kChunk);
  EXPECT_EQ(played.totals.device_peak_bytes, 4 * kChunk);
  EXPECT_EQ(played.totals.device_floor_bytes, kChunk);  // Whoever updates in HOST needs no more.
  // The first leaves while the round ends, the others in the next one.
  std::vector<int64_t> begin_ns;
  for (const SimulatedEvent& event : played.events) {
    if (event.lane == Lane::kEvict) begin_ns.push_back(event.begin_ns);
  }
  constexpr int64_t kCopyNs = kChunk + 100;
  EXPECT_THAT(begin_ns, ElementsAre(kCopyNs - 10, 2 * kCopyNs - 10, 3 * kCopyNs - 10,
                                    played.totals.round_ns - 10));
}

// A plan that keeps what it is told to.
absl::StatusOr<Plan> PlanKeeping(const RangeTrace& trace, std::vector<int32_t> updated,
                                 std::vector<int32_t> late, int64_t device_bytes,
                                 const CostModel& costs) {
  PlanInputs inputs = {.trace = trace, .budget_bytes = {}, .costs = costs, .policy = {}};
  inputs.budget_bytes[Tier::kDevice] = device_bytes;
  const RangeTrace kept = WithKeptGradients(trace, updated, late);
  absl::StatusOr<std::vector<int32_t>> slots_at = SlotsAtPositions(kept, device_bytes);
  if (!slots_at.ok()) return slots_at.status();
  return TracePlanner(inputs, kept, *std::move(slots_at)).Make({}, "belady");
}

// One layer: its gradient leaves behind the update's operator, is there in HOST before it is
// updated, and the parameters come after that.
TEST(KeptGradientsTest, TimesOfALateGradientAreThoseCountedByHand) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(1, 10'000), kChunk));
  const CostModel costs = {.host_to_device = 1e9,
                           .device_to_host = 1e9,
                           .update_elements_per_second = 1e9,
                           .device_update_elements_per_second = 1e9,
                           .copy_latency_ns = 100};
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanKeeping(trace, {}, {0}, 2 * kChunk, costs));
  ASSERT_OK(CheckPlan(plan));
  EXPECT_EQ(plan.made_by, "belady, 1 late gradient");
  EXPECT_THAT(plan.late_gradients, ElementsAre(1));
  EXPECT_THAT(plan.updated, ElementsAre(0));
  EXPECT_EQ(plan.evictions.back(), (PlannedEviction{1, 2, true, false}));
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, true));
  EXPECT_EQ(played.totals, plan.prediction);
  constexpr int64_t kCopyNs = kChunk + 100, kUpdateNs = kChunk / 4;
  EXPECT_EQ(played.totals.compute_ns, 2 * 10'000 + kUpdateNs / 4 + 10);
  EXPECT_EQ(played.totals.round_ns,
            2 * 10'000 + kUpdateNs / 4 + kCopyNs /* out */ + kUpdateNs + kCopyNs /* in */);
  EXPECT_EQ(played.totals.evict_bytes, kChunk);
  EXPECT_EQ(played.totals.fetch_bytes, kChunk);
  EXPECT_EQ(played.totals.device_peak_bytes, 2 * kChunk);
}

// When each update in HOST begins, since that of its round's last operator, in their order.
std::vector<std::pair<int64_t, int32_t>> UpdatesOf(const RangeTrace& trace, const Plan& plan,
                                                   const CostModel& costs) {
  const absl::StatusOr<Simulation> played = Simulate(trace, plan, costs, true);
  EXPECT_OK(played.status());
  int64_t last_ns = 0;
  for (const SimulatedEvent& event : played->events) {
    if (event.lane == Lane::kCompute) last_ns = event.begin_ns;
  }
  std::vector<std::pair<int64_t, int32_t>> updates;
  for (const SimulatedEvent& event : played->events) {
    if (event.lane != Lane::kUpdate) continue;
    const int64_t ns = event.begin_ns - last_ns;
    updates.push_back({ns < 0 ? ns + played->totals.round_ns : ns, event.subject});
  }
  std::sort(updates.begin(), updates.end());
  return updates;
}

TEST(KeptGradientsTest, UpdatesWithLateGradientsGoFirstWhenTheseHaveArrived) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(4, 100'000), kChunk));
  CostModel costs = {.host_to_device = 1e9,
                     .device_to_host = 1e9,
                     .update_elements_per_second = 1e9,
                     .device_update_elements_per_second = 1e9,
                     .copy_latency_ns = 0};
  ASSERT_OK_AND_ASSIGN(Plan plan, PlanKeeping(trace, {}, {0, 2}, 16 * kChunk, costs));
  ASSERT_OK(CheckPlan(plan));
  // Both are counted into the norm, then they leave.
  constexpr int64_t kUpdateNs = kChunk / 4, kArriveNs = 2 * kUpdateNs / 4 + kChunk;
  // Updates faster than copies: they are the last, and each waits for its gradient.
  EXPECT_THAT(
      UpdatesOf(trace, plan, costs),
      ElementsAre(Pair(0, 4), Pair(kUpdateNs, 6), Pair(kArriveNs, 0), Pair(kArriveNs + kChunk, 2)));
  // Slower ones: they go before those of whom all is there.
  costs.update_elements_per_second = 1e8;
  constexpr int64_t kSlowNs = 10 * kUpdateNs;
  EXPECT_THAT(
      UpdatesOf(trace, plan, costs),
      ElementsAre(Pair(0, 4), Pair(kSlowNs, 0), Pair(2 * kSlowNs, 2), Pair(3 * kSlowNs, 6)));
  // In the order in which they leave, whatever the update's.
  ASSERT_EQ(plan.evictions.size(), 2u + 4u);  // All parameters leave when they are used last.
  std::swap(plan.evictions[4], plan.evictions[5]);
  EXPECT_THAT(
      UpdatesOf(trace, plan, costs),
      ElementsAre(Pair(0, 4), Pair(kSlowNs, 2), Pair(2 * kSlowNs, 0), Pair(3 * kSlowNs, 6)));
}

// What is dropped while its write-back is under way frees its slots when that ends.
TEST(KeptGradientsTest, ASlotIsNotFreeBeforeItsWriteBackHasEnded) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(1, 10), kChunk));
  const CostModel costs = {.host_to_device = 1e9,
                           .device_to_host = 1e9,
                           .device_update_elements_per_second = 1e9,
                           .copy_latency_ns = 0};
  ASSERT_OK_AND_ASSIGN(Plan plan, PlanFor(trace, 4 * kChunk, costs, {PolicyKind::kCuda}));
  // The parameters leave after forward and come back for backward.
  const SlotId slot = plan.initial[0].range == 0   ? plan.initial[0].slot
                      : plan.initial[1].range == 0 ? plan.initial[1].slot
                                                   : plan.initial[2].slot;
  plan.evictions.insert(plan.evictions.begin(), {0, 0, false});
  plan.fetches.insert(plan.fetches.begin(), {0, slot, 0, 1});
  ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, true));
  int64_t written_ns = 0, fetched_ns = 0;
  for (const SimulatedEvent& event : played.events) {
    if (event.subject != 0) continue;
    if (event.lane == Lane::kEvict) written_ns = event.end_ns;
    if (event.lane == Lane::kFetch) fetched_ns = event.begin_ns;
  }
  EXPECT_GT(fetched_ns, 1'000);
  EXPECT_EQ(fetched_ns, written_ns);
}

TEST(KeptGradientsTest, APlanOfOtherUpdatesIsRefused) {
  Trace tensors = Layers(2, 1'000);
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(tensors, kChunk));
  ASSERT_OK_AND_ASSIGN(Plan plan, PlanFor(trace, 16 * kChunk, {}, {PolicyKind::kCuda}));
  ASSERT_OK(Simulate(trace, plan, {}, false));
  EXPECT_THAT(Simulate(trace, plan, {.device_update_elements_per_second = 0}, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which takes none")));
  // Room for a gradient that is complete earlier.
  for (PlannedFetch& fetch : plan.fetches) fetch.after = fetch.needed_at = 3;
  EXPECT_THAT(Simulate(trace, plan, {}, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not of the trace")));
  ASSERT_OK_AND_ASSIGN(plan, PlanFor(trace, 16 * kChunk, {}, {PolicyKind::kCuda}));
  RangeTrace other = trace;
  other.gradient_outs.pop_back();
  EXPECT_THAT(Simulate(other, plan, {}, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not of the trace")));
}

TEST(KeptGradientsTest, APlanOfOtherLateGradientsIsRefused) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(2, 1'000), kChunk));
  ASSERT_OK_AND_ASSIGN(Plan plan, PlanKeeping(trace, {}, {0, 2}, 16 * kChunk, {}));
  ASSERT_OK(Simulate(trace, plan, {}, false));
  EXPECT_THAT(
      Simulate(trace, plan, {.device_update_elements_per_second = 0}, false),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 updates and 2 late gradients")));
  const auto other = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not of the trace"));
  // One that does not leave before the update.
  RangeTrace without = trace;
  without.gradient_outs.pop_back();
  EXPECT_THAT(Simulate(without, plan, {}, false), other);
  // One whose parameters an operator writes.
  RangeTrace writes = trace;
  writes.uses[0].written = true;
  EXPECT_THAT(Simulate(writes, plan, {}, false), other);
  // Room for a gradient that is complete earlier.
  Plan late_room = plan;
  for (PlannedFetch& fetch : late_room.fetches) {
    if (fetch.blank) fetch.after = fetch.needed_at = 3;
  }
  EXPECT_THAT(Simulate(trace, late_room, {}, false), other);
  // Not in the order of the update.
  std::swap(plan.late_gradients[0], plan.late_gradients[1]);
  std::swap(plan.uses[plan.uses.size() - 2], plan.uses.back());
  ASSERT_OK(CheckPlan(plan));
  EXPECT_THAT(Simulate(trace, plan, {}, false), other);
}

// Property: whatever the choice, what the round computes on and reads stays, and only the way
// changes.
TEST(KeptGradientsTest, AnyChoiceKeepsTheRoundsUses) {
  int64_t chosen = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    RandomTraceOptions options = DrawOptions(seed, seed % 2 == 0);
    options.micro_batches = 1 + static_cast<int>(seed % 2);
    ASSERT_OK_AND_ASSIGN(const RangeTrace trace,
                         PackTrace(RandomTrace(options, seed).Make(), kChunk));
    std::vector<int32_t> params = MayKeepGradients(trace);
    std::shuffle(params.begin(), params.end(), random);
    params.resize(params.empty() ? 0 : random() % (params.size() + 1));
    chosen += static_cast<int64_t>(params.size());
    const auto updated = absl::MakeConstSpan(params).first(random() % (params.size() + 1));
    const auto late = absl::MakeConstSpan(params).subspan(updated.size());
    const RangeTrace changed = WithKeptGradients(trace, updated, late);
    const std::set<int32_t> on_device(updated.begin(), updated.end()),
        are_late(late.begin(), late.end());
    const auto states = static_cast<size_t>(NumStateChunks(options.format));
    EXPECT_EQ(changed.ranges.size(), trace.ranges.size() + states * updated.size());
    EXPECT_EQ(changed.updated.size() + changed.device_updates.size(), trace.updated.size());
    std::vector<int32_t> order;
    for (const PlannedUpdate& update : changed.device_updates) order.push_back(update.param());
    std::vector<int32_t> expected;
    for (const int32_t range : trace.updated) {
      if (on_device.count(range) != 0) expected.push_back(range);
    }
    EXPECT_EQ(order, expected);
    expected.clear();
    for (const int32_t range : trace.updated) {
      if (are_late.count(range) != 0) expected.push_back(range + 1);
    }
    EXPECT_EQ(changed.late_gradients, expected);
    size_t next_out = 0, next_kept = 0;
    std::set<int32_t>
        before;  // The kept gradients of the last position: they come at its interval's end.
    for (int32_t p = 0; p < trace.num_positions(); ++p) {
      std::vector<int32_t> pinned;
      std::set<int32_t> kept, outs;
      for (const RangeUse& use : changed.uses_of(p)) {
        if (use.is_pinned) {
          pinned.push_back(use.range);
        } else {
          EXPECT_TRUE(kept.insert(use.range).second);
        }
      }
      if (p + 1 < trace.num_positions()) {
        EXPECT_EQ(pinned, UsedAt(trace, p));
      }
      for (; next_out < trace.gradient_outs.size() && trace.gradient_outs[next_out].position == p;
           ++next_out) {
        const RangeTrace::GradOut& out = trace.gradient_outs[next_out];
        if (on_device.count(out.range - 1) + are_late.count(out.range - 1) != 0) {
          outs.insert(out.range);
        } else {
          ASSERT_LT(next_kept, changed.gradient_outs.size());
          EXPECT_EQ(changed.gradient_outs[next_kept++].range, out.range);
        }
      }
      std::set<int32_t> expected_kept = outs;
      if (p + 1 < trace.num_positions()) expected_kept.insert(before.begin(), before.end());
      EXPECT_EQ(kept, expected_kept);
      before = outs;
    }
    EXPECT_EQ(next_kept, changed.gradient_outs.size());
  }
  EXPECT_GT(chosen, 300);
}

// Backward pushes out gradients for twice as long as it computes, and forward nothing: some leave
// there.
TEST(KeptGradientsTest, AutoLetsGradientsLeaveBesideForwardWhereTheirWayIsFull) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Layers(24, 2'000), kChunk));
  CostModel costs = {.host_to_device = 1e10,
                     .device_to_host = 1e9,
                     .update_elements_per_second = 1e10,
                     .device_update_elements_per_second = 1e10,
                     .copy_latency_ns = 0};
  ASSERT_OK_AND_ASSIGN(const Plan best, PlanFor(trace, 32 * kChunk, costs));
  EXPECT_THAT(best.device_updates, IsEmpty());
  ASSERT_GT(best.late_gradients.size(), 2u);
  for (size_t i = 0; i < best.late_gradients.size(); ++i) {
    EXPECT_EQ(best.late_gradients[i], trace.updated[i] + 1);
  }
  costs.device_update_elements_per_second = 0;
  ASSERT_OK_AND_ASSIGN(const Plan without, PlanFor(trace, 32 * kChunk, costs));
  EXPECT_THAT(without.late_gradients, IsEmpty());
  EXPECT_LT(static_cast<double>(best.prediction.round_ns),
            0.9 * static_cast<double>(without.prediction.round_ns));
  std::printf("%s: %.3f of the round\n", best.made_by.c_str(),
              static_cast<double>(best.prediction.round_ns) /
                  static_cast<double>(without.prediction.round_ns));
}

// Blocks behind a table of 34 MB, which is used first and whose gradient is the last; DEVICE has
// room for a quarter of the parameters. Forward fetches all and backward pushes all gradients out.
class BlocksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const trainer::NamedTrace step =
        BlockTrace({.width = 1024, .inner = 4096}, {.sequence = 512},
                   {.flops_per_second = 1e11, .memory_bytes_per_second = 1e10, .kernel_ns = 2'000});
    ASSERT_OK_AND_ASSIGN(trace_, PackTrace(step.trace, kMiB));
    int64_t param_bytes = 0, peak_bytes = 0;
    for (const TracedTensor& tensor : step.trace.tensors) param_bytes += tensor.size_bytes;
    for (const TracedOperator& at : step.trace.operators) {
      peak_bytes = std::max(peak_bytes, at.non_model_peak_bytes);
      compute_ns_ += at.compute_ns;
    }
    device_bytes_ = param_bytes / 4 + peak_bytes;
  }

  // auto's plan where fetches take so many times as long as the operators; `part` is its time's
  // part of that of a plan that keeps no gradients.
  void MakePlans(double transfer_by_compute, double& part) {
    CostModel costs;
    costs.device_update_elements_per_second = 0;
    ASSERT_OK_AND_ASSIGN(const Plan any, PlanFor(trace_, device_bytes_, costs));
    costs.host_to_device = costs.device_to_host =
        static_cast<double>(any.prediction.fetch_bytes) * 1e9 /
        (transfer_by_compute * static_cast<double>(compute_ns_));
    ASSERT_OK_AND_ASSIGN(const Plan without, PlanFor(trace_, device_bytes_, costs));
    costs.device_update_elements_per_second = 1e9;
    ASSERT_OK_AND_ASSIGN(plan_, PlanFor(trace_, device_bytes_, costs));
    EXPECT_LE(plan_.prediction.device_peak_bytes, device_bytes_);
    part = static_cast<double>(plan_.prediction.round_ns) /
           static_cast<double>(without.prediction.round_ns);
    std::printf("%s: %.3f of the round; MB in %lld and %lld, out %lld and %lld\n",
                plan_.made_by.c_str(), part,
                static_cast<long long>(plan_.prediction.fetch_bytes / 1'000'000),
                static_cast<long long>(without.prediction.fetch_bytes / 1'000'000),
                static_cast<long long>(plan_.prediction.evict_bytes / 1'000'000),
                static_cast<long long>(without.prediction.evict_bytes / 1'000'000));
  }

  RangeTrace trace_;
  int64_t device_bytes_ = 0, compute_ns_ = 0;
  Plan plan_;
};

// What is updated on DEVICE is moved where that lane is idle.
TEST_F(BlocksTest, AutoTakesFirstAndLastTransfersFromRoundsThatHideTheRest) {
  double part = 1;
  ASSERT_NO_FATAL_FAILURE(MakePlans(1, part));
  ASSERT_FALSE(plan_.device_updates.empty());
  EXPECT_EQ(plan_.device_updates[0].param(), trace_.updated[0]);
  EXPECT_LT(part, 0.97);
}

// Late gradients leave where that lane is idle.
TEST_F(BlocksTest, AutoTakesGradientsFromTheFullLaneOfBackward) {
  double part = 1;
  ASSERT_NO_FATAL_FAILURE(MakePlans(2, part));
  ASSERT_FALSE(plan_.late_gradients.empty());
  EXPECT_EQ(plan_.late_gradients[0], trace_.updated[0] + 1);
  EXPECT_LT(part, 0.92);
}

}  // namespace
}  // namespace gemini::policies
