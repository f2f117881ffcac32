// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/host_uses.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gemini/plan/planned_update.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

constexpr int64_t kChunk = kTestChunkBytes;

// A tensor of two chunks and a half, and two that share one. Ranges: param and grad of each.
RangeTrace TwoRanges() {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{5 * kChunk / 2, TensorGroup::kTrainable, 0},
                   {kChunk / 4, TensorGroup::kTrainable, 0},
                   {kChunk / 4, TensorGroup::kTrainable, 0}};
  trace.operators = {{0, 3, 1000, 0}, {3, 0, 10, 0}};
  trace.uses = {{.tensor = 0}, {.tensor = 1}, {.tensor = 2}};
  trace.gradient_outs = {{0, 0}, {0, 1}, {0, 2}};
  trace.updated = {0, 1, 2};
  return *PackTrace(trace, kChunk);
}

auto IsUse(int64_t bundle, ChunkKind chunk, HostUseKind kind, int64_t asked_ns) {
  return AllOf(Field("chunk", &HostUse::chunk, ChunkOf(BundleId(bundle), chunk)),
               Field("kind", &HostUse::kind, kind),
               Field("asked_ns", &HostUse::asked_ns, asked_ns));
}

TEST(HostUsesTest, AFetchReadsAndAWriteBackOverwritesEachChunkInTurn) {
  const RangeTrace trace = TwoRanges();
  Plan plan;
  plan.ranges = trace.ranges;
  plan.fetches = {{.range = 0, .slot = SlotId(0)}};
  plan.evictions = {{.range = 2, .writes_back = true}};
  const std::vector<HostUse> uses = HostUses(
      trace, plan, {{HostEvent::kFetch, 0, 100, 10}, {HostEvent::kWriteBack, 0, 105, 7}}, 1000);
  EXPECT_THAT(uses, ElementsAre(IsUse(0, ChunkKind::kParam, HostUseKind::kReads, 100),
                                IsUse(3, ChunkKind::kParam, HostUseKind::kOverwrites, 105),
                                IsUse(1, ChunkKind::kParam, HostUseKind::kReads, 110),
                                IsUse(2, ChunkKind::kParam, HostUseKind::kReads, 120)));
  EXPECT_EQ(uses[3].part, 2);
  EXPECT_EQ(uses[3].access, 0);
  EXPECT_EQ(uses[3].held_ns, 10);
  EXPECT_THAT(PlannedHostUses(uses),
              ElementsAre(PlannedHostUse{0, ChunkOf(BundleId(0), ChunkKind::kParam), false, 100},
                          PlannedHostUse{0, ChunkOf(BundleId(3), ChunkKind::kParam), true, 105},
                          PlannedHostUse{0, ChunkOf(BundleId(1), ChunkKind::kParam), false, 110},
                          PlannedHostUse{0, ChunkOf(BundleId(2), ChunkKind::kParam), false, 120}));
}

TEST(HostUsesTest, AGradientOverwritesTheChunksThatItFillsAlone) {
  const RangeTrace trace = TwoRanges();
  const std::vector<HostUse> uses = HostUses(
      trace, {}, {{HostEvent::kGradient, 0, 0, 10}, {HostEvent::kGradient, 1, 50, 10}}, 100);
  EXPECT_THAT(uses, ElementsAre(IsUse(0, ChunkKind::kGrad, HostUseKind::kOverwrites, 0),
                                IsUse(1, ChunkKind::kGrad, HostUseKind::kOverwrites, 10),
                                IsUse(2, ChunkKind::kGrad, HostUseKind::kChanges, 20),
                                IsUse(3, ChunkKind::kGrad, HostUseKind::kChanges, 50)));
}

TEST(HostUsesTest, AnUpdateChangesParametersAndMomentsBundleAfterBundle) {
  const RangeTrace trace = TwoRanges();
  const std::vector<HostUse> uses = HostUses(trace, {}, {{HostEvent::kUpdate, 0, 0, 10}}, 100);
  ASSERT_EQ(uses.size(), 12u);
  for (int64_t bundle = 0; bundle < 3; ++bundle) {
    const std::vector<HostUse> of_bundle(uses.begin() + 4 * bundle, uses.begin() + 4 * bundle + 4);
    const int64_t ns = 10 * bundle;
    EXPECT_THAT(of_bundle,
                ElementsAre(IsUse(bundle, ChunkKind::kParam, HostUseKind::kChanges, ns),
                            IsUse(bundle, ChunkKind::kExpAvg, HostUseKind::kChanges, ns),
                            IsUse(bundle, ChunkKind::kExpAvgSq, HostUseKind::kChanges, ns),
                            IsUse(bundle, ChunkKind::kGrad, HostUseKind::kReads, ns)));
  }
}

TEST(HostUsesTest, StatesWhoseHomeIsNvmePassThroughHostUnforeseen) {
  RangeTrace trace = TwoRanges();
  trace.states_on_nvme = {true};
  EXPECT_THAT(HostUses(trace, {}, {{HostEvent::kUpdate, 2, 0, 10}}, 100),
              ElementsAre(IsUse(3, ChunkKind::kParam, HostUseKind::kChanges, 0),
                          IsUse(3, ChunkKind::kGrad, HostUseKind::kReads, 0)));
}

TEST(HostUsesTest, WhatIsUpdatedOnDeviceIsGivenUpAndNotForeseen) {
  RangeTrace trace = TwoRanges();
  Plan plan;
  plan.device_updates = {Fp32Update(2, 4, 5, 3)};
  for (const ChunkKind kind : {ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
    PlannedRange moment = trace.ranges[2];
    moment.kind = kind;
    trace.ranges.push_back(moment);
  }
  const std::vector<HostUse> uses = HostUses(trace, plan, {{HostEvent::kGiveUp, 0, 7, 0}}, 100);
  EXPECT_THAT(uses, ElementsAre(IsUse(3, ChunkKind::kParam, HostUseKind::kGivesUp, 7),
                                IsUse(3, ChunkKind::kExpAvg, HostUseKind::kGivesUp, 7),
                                IsUse(3, ChunkKind::kExpAvgSq, HostUseKind::kGivesUp, 7)));
  EXPECT_THAT(PlannedHostUses(uses), IsEmpty());
}

TEST(HostUsesTest, WhatComesAfterItsRoundIsInTheNextOnesOrder) {
  const RangeTrace trace = TwoRanges();
  const std::vector<HostUse> uses =
      HostUses(trace, {}, {{HostEvent::kGradient, 1, 90, 1}, {HostEvent::kUpdate, 2, 230, 1}}, 100);
  ASSERT_EQ(uses.size(), 5u);
  EXPECT_THAT(uses[0], IsUse(3, ChunkKind::kParam, HostUseKind::kChanges, 30));
  EXPECT_EQ(uses[0].rounds_after, 2);
  EXPECT_THAT(uses[4], IsUse(3, ChunkKind::kGrad, HostUseKind::kChanges, 90));
  EXPECT_EQ(uses[4].rounds_after, 0);
}

}  // namespace
}  // namespace gemini::policies
