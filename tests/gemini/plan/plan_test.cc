// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/plan.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gemini/plan/planned_update.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlannedRange Range(int64_t first, ChunkKind kind = ChunkKind::kParam, int64_t num_bundles = 1) {
  return {.space = 0, .first = BundleId(first), .num_bundles = num_bundles, .kind = kind};
}

// Ranges 0, 1 (two chunks) and 2 are used in turn, then 3, the gradient of 2, then the update of 2
// and
// 0. Slots: 1 lies in 0 and 1 all the time; the others pass through 2 and 3.
Plan SmallPlan() {
  Plan plan;
  plan.chunk_bytes = 4096;
  plan.device_bytes = 4 * 4096 + 100;
  plan.ranges = {Range(0), Range(1, ChunkKind::kParam, 2), Range(3), Range(3, ChunkKind::kGrad)};
  plan.first_use = {0, 1, 2, 3, 5, 5};
  plan.uses = {0, 1, 2, 3, 1};
  plan.updated = {2, 0};
  plan.initial = {{1, SlotId(0)}, {0, SlotId(2)}};
  plan.fetches = {{2, SlotId(3), -1, 2}, {3, SlotId(2), 3, 3}, {0, SlotId(2), 4, 5}};
  plan.evictions = {{0, 1, false}, {3, 3, true}};
  return plan;
}

TEST(PlanTest, ARoundThatEndsAsItBeganIsAccepted) { ASSERT_OK(CheckPlan(SmallPlan())); }

TEST(PlanTest, WithoutAnUpdateWhatStaysIsThereInTheNextRound) {
  Plan plan = SmallPlan();
  plan.updated.clear();
  plan.evictions.push_back({2, 4, false});
  ASSERT_OK(CheckPlan(plan));
}

TEST(PlanTest, EveryKindOfDamageIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(Plan&)>>> damages = {
      {"chunks of 0 bytes", [](Plan& p) { p.chunk_bytes = 0; }},
      {"not consecutive", [](Plan& p) { p.first_use[1] = 4; }},
      {"not consecutive", [](Plan& p) { p.first_use = {0}; }},
      {"not consecutive", [](Plan& p) { p.uses.push_back(0); }},
      {"range 1 has 0 bundles", [](Plan& p) { p.ranges[1].num_bundles = 0; }},
      {"kind 2", [](Plan& p) { p.ranges[1].kind = ChunkKind::kExpAvg; }},
      {"use of range 4", [](Plan& p) { p.uses[0] = 4; }},
      {"update of range 3", [](Plan& p) { p.updated[0] = 3; }},
      {"update's operator", [](Plan& p) { p.first_use[4] = 4; }},
      {"begins in slot 3", [](Plan& p) { p.initial[0].slot = SlotId(3); }},
      {"into slot 4 of 4", [](Plan& p) { p.fetches[0].slot = SlotId(4); }},
      {"after 3, needed at 2", [](Plan& p) { p.fetches[0].after = 3; }},
      {"needed at 10 of 5", [](Plan& p) { p.fetches[2].needed_at = 10; }},
      {"before one in front", [](Plan& p) { std::swap(p.fetches[0], p.fetches[1]); }},
      {"behind one after 3", [](Plan& p) { std::swap(p.evictions[0], p.evictions[1]); }},
      {"eviction of range -1", [](Plan& p) { p.evictions[0].range = -1; }},
      {"use in HOST of chunk -1",
       [](Plan& p) {
         p.host_uses.push_back({0, ChunkId(-1), true});
       }},
      {"behind one at 5",
       [](Plan& p) {
         p.host_uses = {{0, ChunkId(1), false, 5}, {0, ChunkId(2), false, 4}};
       }},
      {"take -1 ns", [](Plan& p) { p.host_read_ns = -1; }},
      {"where range 2 is", [](Plan& p) { p.fetches[0].slot = SlotId(2), p.fetches[0].after = 1; }},
      {"where range 0 is", [](Plan& p) { p.fetches[1].after = 0, p.evictions[0].after = 2; }},
      {"is in slot 0",
       [](Plan& p) {
         p.fetches[0] = {1, SlotId(2), 1, 3};
       }},
      {"uses range 2, which is not", [](Plan& p) { p.fetches.erase(p.fetches.begin()); }},
      {"uses range 1, which is not",
       [](Plan& p) {
         p.evictions.insert(p.evictions.begin() + 1, {1, 2, false});
       }},
      {"range 2, fetched for 3", [](Plan& p) { p.fetches[0].needed_at = 3; }},
      {"fetched for operator 3, which",
       [](Plan& p) {
         p.device_bytes += 4096;
         p.ranges[3] = Range(9);
         p.fetches[1].slot = SlotId(4);
         p.uses[3] = 1;
         p.evictions.pop_back();
       }},
      {"before its use",
       [](Plan& p) {
         p.evictions.insert(p.evictions.begin(), {2, 1, false});
       }},
      {"not on DEVICE", [](Plan& p) { p.evictions[1].range = 0; }},
      {"after the update that reads it", [](Plan& p) { p.evictions[1].after = 4; }},
      {"gradients of range 3 are on DEVICE", [](Plan& p) { p.evictions.pop_back(); }},
      {"is fetched before its update", [](Plan& p) { p.fetches[2].after = 3; }},
      {"begins elsewhere", [](Plan& p) { p.fetches[2].slot = SlotId(3); }},
      {"ends in", [](Plan& p) { p.fetches.pop_back(); }},
      {"ends in",
       [](Plan& p) {
         p.updated = {2};
         p.fetches.pop_back();
       }},
  };
  for (const auto& [text, damage] : damages) {
    Plan plan = SmallPlan();
    damage(plan);
    EXPECT_THAT(CheckPlan(plan), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  }
}

// Range 0 is used by operators 0 and 1, which leaves the last of its gradients, and updated on
// DEVICE by operator 2. It stays; its moments (2 and 3) come for the update alone, its gradients
// (1) from operator 0 on. Range 4 is updated in HOST, its gradients never come.
Plan UpdateOnDevice() {
  Plan plan;
  plan.chunk_bytes = 4096;
  plan.device_bytes = 5 * 4096;
  plan.ranges = {Range(0), Range(0, ChunkKind::kGrad), Range(0, ChunkKind::kExpAvg),
                 Range(0, ChunkKind::kExpAvgSq), Range(1)};
  plan.first_use = {0, 1, 3, 7};
  plan.uses = {0, 0, 4, 0, 2, 3, 1};
  plan.updated = {4};
  plan.device_updates = {Fp32Update(0, 2, 3, 1)};
  plan.initial = {{0, SlotId(0)}};
  plan.fetches = {
      {1, SlotId(1), 0, 0, true}, {4, SlotId(4), 0, 1}, {2, SlotId(2), 0, 2}, {3, SlotId(3), 1, 2}};
  plan.evictions = {{1, 2, true}, {2, 2, true}, {3, 2, true}, {0, 2, true, true}};
  return plan;
}

TEST(PlanTest, AnUpdateOnDeviceIsAccepted) { ASSERT_OK(CheckPlan(UpdateOnDevice())); }

TEST(PlanTest, AnUpdateOnDeviceMayHaveEveryKindOfChunk) {
  Plan plan = UpdateOnDevice();
  plan.device_bytes = 10 * 4096;
  PlannedUpdate& update = plan.device_updates[0];
  int64_t slot = 5;
  for (const ChunkKind kind : {ChunkKind::kMaster, ChunkKind::kMasterUpper, ChunkKind::kExpAvgUpper,
                               ChunkKind::kExpAvgSqUpper}) {
    const auto range = static_cast<int32_t>(plan.ranges.size());
    update.ranges[kind] = range;
    plan.ranges.push_back(Range(0, kind));
    plan.fetches.push_back({range, SlotId(slot++), 1, 2});
    plan.evictions.insert(plan.evictions.end() - 1, {range, 2, true});
  }
  plan.uses.resize(3);
  const std::vector<int32_t> used = update.used();
  plan.uses.insert(plan.uses.end(), used.begin(), used.end());
  plan.first_use.back() = static_cast<int32_t>(plan.uses.size());
  ASSERT_OK(CheckPlan(plan));
  EXPECT_EQ(used.size(), static_cast<size_t>(kNumChunkKinds));
  EXPECT_EQ(update.changed().size() + 1, used.size());
  plan.ranges.back().kind = static_cast<ChunkKind>(kNumChunkKinds);
  EXPECT_THAT(CheckPlan(plan), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kind 8")));
}

TEST(PlanTest, AnUpdateOnDeviceMayBeTheOnlyOne) {
  Plan plan = UpdateOnDevice();
  plan.updated.clear();
  plan.evictions.insert(plan.evictions.begin(), {4, 2, false});
  ASSERT_OK(CheckPlan(plan));
}

TEST(PlanTest, WhatWasWrittenBackAndStayedMayBeDroppedLater) {
  Plan plan = UpdateOnDevice();
  plan.evictions.insert(plan.evictions.begin(), {0, 0, false});
  plan.fetches.insert(plan.fetches.begin() + 1, {0, SlotId(0), 1, 1});
  ASSERT_OK(CheckPlan(plan));
}

TEST(PlanTest, WhatStayedInTheRoundBeforeIsDroppedBehindWriteBacks) {
  Plan plan;
  plan.ranges.resize(3);
  // Range 0 is dropped, and written back behind it; range 1 leaves in between, 2 is written back.
  plan.evictions = {{.range = 0, .after = 0},
                    {.range = 1, .after = 1},
                    {.range = 2, .after = 2, .writes_back = true},
                    {.range = 0, .after = 3, .writes_back = true, .stays = true}};
  EXPECT_THAT(BehindWriteBacks(plan), ElementsAre(true, false, true, true));
  // What was dropped and comes back is clean.
  plan.evictions.insert(plan.evictions.begin() + 2, PlannedEviction{.range = 0, .after = 1});
  EXPECT_THAT(BehindWriteBacks(plan), ElementsAre(true, false, false, true, true));
}

TEST(PlanTest, GradientsMayLeaveBetweenAndComeBack) {
  Plan plan = UpdateOnDevice();
  plan.evictions.insert(plan.evictions.begin(), {1, 0, true});
  plan.fetches.insert(plan.fetches.begin() + 1, {1, SlotId(1), 0, 1});
  ASSERT_OK(CheckPlan(plan));
}

std::function<void(Plan&)> Names(ChunkKind kind, int32_t range) {
  return [kind, range](Plan& plan) { plan.device_updates[0].ranges[kind] = range; };
}

TEST(PlanTest, EveryKindOfDamageToAnUpdateOnDeviceIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(Plan&)>>> damages = {
      {"range 7 as its exp_avg:", Names(ChunkKind::kExpAvg, 7)},
      {"range -1 as its param:", Names(ChunkKind::kParam, -1)},
      {"range -1 as its grad:", Names(ChunkKind::kGrad, -1)},
      {"range -2 as its master:", Names(ChunkKind::kMaster, -2)},
      {"range 3 as its exp_avg:", Names(ChunkKind::kExpAvg, 3)},
      {"range 2 as its exp_avg_upper:", Names(ChunkKind::kExpAvgUpper, 2)},
      {"comes twice", [](Plan& p) { p.device_updates.push_back(p.device_updates[0]); }},
      {"of other bundles", [](Plan& p) { p.ranges[2].first = BundleId(1); }},
      {"of other bundles", [](Plan& p) { p.ranges[1].num_bundles = 2, p.device_bytes *= 2; }},
      {"on DEVICE and in HOST", [](Plan& p) { p.updated.push_back(0); }},
      {"of kind 2 and not", [](Plan& p) { p.device_updates.clear(); }},
      {"range 2 as its exp_avg", [](Plan& p) { p.ranges[2].kind = ChunkKind::kMaster; }},
      {"kind 9", [](Plan& p) { p.ranges[2].kind = static_cast<ChunkKind>(9); }},
      {"other than the 4", [](Plan& p) { p.uses.pop_back(), p.first_use[3] = 6; }},
      {"other than the 4", [](Plan& p) { std::swap(p.uses[3], p.uses[4]); }},
      {"an operator uses range 1", [](Plan& p) { p.uses[1] = 1; }},
      {"an operator uses range 2", [](Plan& p) { p.uses[2] = 2; }},
      {"fetched at moment 1 blank",
       [](Plan& p) { p.fetches[0].range = 4, p.fetches[1].range = 1; }},
      {"fetched at moment 2 blank", [](Plan& p) { p.fetches[2].blank = true; }},
      {"not blank, before it has", [](Plan& p) { p.fetches[0].blank = false; }},
      {"fetched at moment 2 blank",
       [](Plan& p) {
         p.evictions.insert(p.evictions.begin(), {1, 0, true});
         p.fetches.insert(p.fetches.begin() + 1, {1, SlotId(1), 0, 1, true});
       }},
      {"range 1 is dropped after 0",
       [](Plan& p) {
         p.evictions.insert(p.evictions.begin(), {1, 0, false});
         p.fetches.insert(p.fetches.begin() + 1, {1, SlotId(1), 0, 1});
       }},
      {"range 2 is dropped after 2", [](Plan& p) { p.evictions[1].writes_back = false; }},
      {"has of range 0 is not written", [](Plan& p) { p.evictions.pop_back(); }},
      {"range 0 is dropped after 0",
       [](Plan& p) {
         p.evictions.pop_back();
         p.evictions.insert(p.evictions.begin(), {0, 0, false});
       }},
      {"gradients of range 1 stay", [](Plan& p) { p.evictions[0].stays = true; }},
      {"range 0 stays after 2 and is not", [](Plan& p) { p.evictions[3].writes_back = false; }},
      {"range 0 stays after 2 and leaves",
       [](Plan& p) {
         p.evictions.push_back({0, 2, true});
       }},
      {"range 4 is evicted after 0, where",
       [](Plan& p) {
         p.evictions.insert(p.evictions.begin(), {4, 0, true, true});
       }},
      {"uses range 3, which is not", [](Plan& p) { p.fetches.pop_back(); }},
      {"range 1, which is not", [](Plan& p) { p.fetches.erase(p.fetches.begin()); }},
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    Plan plan = UpdateOnDevice();
    damages[i].second(plan);
    EXPECT_THAT(CheckPlan(plan),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(damages[i].first)))
        << i;
  }
}

// As UpdateOnDevice, and the gradients of range 4 (5) come into slot 4 when it has left, to be
// written back after the update.
Plan LateGradient() {
  Plan plan = UpdateOnDevice();
  plan.ranges.push_back(Range(1, ChunkKind::kGrad));
  plan.first_use = {0, 2, 3, 8};
  plan.uses = {0, 4, 0, 0, 2, 3, 1, 5};
  plan.late_gradients = {5};
  plan.fetches = {{1, SlotId(1), 0, 0, true},
                  {4, SlotId(4), 0, 0},
                  {2, SlotId(2), 0, 2},
                  {5, SlotId(4), 1, 1, true},
                  {3, SlotId(3), 1, 2}};
  plan.evictions = {{4, 0, false}, {1, 2, true}, {5, 2, true},
                    {2, 2, true},  {3, 2, true}, {0, 2, true, true}};
  return plan;
}

TEST(PlanTest, ALateGradientIsAccepted) { ASSERT_OK(CheckPlan(LateGradient())); }

TEST(PlanTest, LateGradientsNeedNoUpdateOnDevice) {
  Plan plan;
  plan.chunk_bytes = 4096;
  plan.device_bytes = 2 * 4096;
  plan.ranges = {Range(0), Range(0, ChunkKind::kGrad)};
  plan.first_use = {0, 1, 2};
  plan.uses = {0, 1};
  plan.updated = {0};
  plan.late_gradients = {1};
  plan.fetches = {{0, SlotId(0), 0, 0}, {1, SlotId(1), 0, 0, true}};
  plan.evictions = {{1, 1, true}};
  ASSERT_OK(CheckPlan(plan));
}

TEST(PlanTest, EveryKindOfDamageToALateGradientIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(Plan&)>>> damages = {
      {"range 9 is late", [](Plan& p) { p.late_gradients[0] = 9; }},
      {"range -1 is late", [](Plan& p) { p.late_gradients[0] = -1; }},
      {"range 4 is late: it is no gradient", [](Plan& p) { p.late_gradients[0] = 4; }},
      {"range 1 is late", [](Plan& p) { p.late_gradients[0] = 1; }},
      {"range 5 is late", [](Plan& p) { p.late_gradients.push_back(5); }},
      {"range 5 are late, and no update", [](Plan& p) { p.updated.clear(); }},
      {"range 5 are late, and no update", [](Plan& p) { p.ranges[5].first = BundleId(2); }},
      {"range 5 are late, and no update", [](Plan& p) { p.ranges[5].space = 1; }},
      {"range 5 are late, and no update",
       [](Plan& p) { p.ranges[5].num_bundles = 2, p.device_bytes *= 2; }},
      {"other than the 5", [](Plan& p) { p.uses.pop_back(), p.first_use[3] = 7; }},
      {"an operator uses range 5", [](Plan& p) { p.uses[2] = 5; }},
      {"begins with a gradient",
       [](Plan& p) {
         p.initial.push_back({5, SlotId(4)});
       }},
      {"not blank, before it has", [](Plan& p) { p.fetches[3].blank = false; }},
      {"range 5 is dropped after 2", [](Plan& p) { p.evictions[2].writes_back = false; }},
      {"gradients of range 5 stay", [](Plan& p) { p.evictions[2].stays = true; }},
      {"has of range 5 is not written",
       [](Plan& p) { p.evictions.erase(p.evictions.begin() + 2); }},
      {"range 5, which is not", [](Plan& p) { p.fetches.erase(p.fetches.begin() + 3); }},
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    Plan plan = LateGradient();
    damages[i].second(plan);
    EXPECT_THAT(CheckPlan(plan),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(damages[i].first)))
        << i;
  }
}

}  // namespace
}  // namespace gemini
