// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

PlannedRange Range(int64_t first, ChunkKind kind = ChunkKind::kParam, int64_t num_bundles = 1) {
  return {.space = 0, .first = BundleId(first), .num_bundles = num_bundles, .kind = kind};
}

// Ranges 0, 1 (two chunks) and 2 are used in turn, then 3, the gradient of 2, then the update of 2 and
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
      {"a host move",
       [](Plan& p) {
         p.host_moves.push_back({0, ChunkId(0), true, 3, 2});
       }},
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

}  // namespace
}  // namespace gemini
