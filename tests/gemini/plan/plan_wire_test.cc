// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/plan_wire.h"

#include <random>

#include "tests/gemini/plan/planned_update.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

// Two ranges take turns in one slot; a third stays.
Plan SmallPlan() {
  Plan plan;
  plan.phase = "train";
  plan.fingerprint = ~uint64_t{0};
  plan.policy = {PolicyKind::kStatic, 0.25, 0.125};
  plan.made_by = "static";
  plan.chunk_bytes = 4096;
  plan.device_bytes = 3 * 4096;
  plan.ranges = {{0, BundleId(0), 1, ChunkKind::kParam},
                 {0, BundleId(1), 1, ChunkKind::kParam},
                 {1, BundleId(7), 2, ChunkKind::kParam}};
  plan.first_use = {0, 2, 4};
  plan.uses = {0, 2, 1, 2};
  plan.initial = {{0, SlotId(2)}, {2, SlotId(0)}};
  plan.fetches = {{1, SlotId(2), 0, 1}, {0, SlotId(2), 1, 2}};
  plan.evictions = {{0, 0, false}, {1, 1, true}};
  plan.host_uses = {{1, ChunkId(35), true, 7}, {0, ChunkId(4), false, 9}};
  plan.host_read_ns = 12;
  plan.prediction = {.round_ns = 5,
                     .compute_ns = 4,
                     .stall_ns = {1, 2, 3, 4, 5},
                     .fetch_bytes = 8192,
                     .evict_bytes = 4096,
                     .nvme_read_bytes = 10,
                     .nvme_write_bytes = 11,
                     .device_peak_bytes = 12,
                     .device_floor_bytes = 13};
  return plan;
}

TEST(PlanWireTest, APlanComesBackAsItWas) {
  ASSERT_OK(CheckPlan(SmallPlan()));
  ASSERT_OK_AND_ASSIGN(const Plan decoded, DecodePlan(EncodePlan(SmallPlan())));
  EXPECT_EQ(decoded, SmallPlan());
}

// A layer whose update is on DEVICE: its parameters stay, its moments and gradients come and go.
Plan UpdateOnDevice() {
  Plan plan;
  plan.chunk_bytes = 4096;
  plan.device_bytes = 6 * 4096;
  plan.ranges = {{0, BundleId(0), 1, ChunkKind::kParam},  {0, BundleId(0), 1, ChunkKind::kGrad},
                 {0, BundleId(0), 1, ChunkKind::kExpAvg}, {0, BundleId(0), 1, ChunkKind::kExpAvgSq},
                 {0, BundleId(1), 1, ChunkKind::kParam},  {0, BundleId(1), 1, ChunkKind::kGrad}};
  plan.first_use = {0, 2, 7};
  plan.uses = {0, 4, 0, 2, 3, 1, 5};
  plan.updated = {4};
  plan.device_updates = {Fp32Update(0, 2, 3, 1)};
  plan.late_gradients = {5};
  plan.initial = {{0, SlotId(0)}};
  plan.fetches = {{1, SlotId(1), 0, 0, true},
                  {4, SlotId(4), 0, 0},
                  {5, SlotId(5), 0, 0, true},
                  {2, SlotId(2), 0, 1},
                  {3, SlotId(3), 0, 1}};
  plan.evictions = {{1, 1, true, false},
                    {5, 1, true, false},
                    {2, 1, true, false},
                    {3, 1, true, false},
                    {0, 1, true, true}};
  return plan;
}

TEST(PlanWireTest, WhatTheUpdateHasOnDeviceComesBackAsItWas) {
  ASSERT_OK(CheckPlan(UpdateOnDevice()));
  ASSERT_OK_AND_ASSIGN(const Plan decoded, DecodePlan(EncodePlan(UpdateOnDevice())));
  EXPECT_EQ(decoded, UpdateOnDevice());
}

TEST(PlanWireTest, WhatNoPlanHasIsRefused) {
  EXPECT_THAT(DecodePlan(std::string(100, '\0')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no plan")));
  Plan plan = SmallPlan();
  plan.fetches[0].slot = SlotId(3);
  EXPECT_THAT(DecodePlan(EncodePlan(plan)), StatusIs(absl::StatusCode::kInvalidArgument));
  plan = SmallPlan();
  plan.policy.kind = static_cast<PolicyKind>(200);
  EXPECT_THAT(DecodePlan(EncodePlan(plan)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("policy 200")));
}

// Property: bytes with some changed are a plan that passes the checks, or are refused.
TEST(PlanWireTest, ChangedBytesNeverGiveAPlanThatDoesNotCheck) {
  std::mt19937_64 random(/*seed=*/12);
  const std::string small = EncodePlan(SmallPlan()), updates = EncodePlan(UpdateOnDevice());
  int refused = 0;
  for (int round = 0; round < 40'000; ++round) {
    std::string bytes = round % 2 == 0 ? small : updates;
    for (uint64_t i = 1 + random() % 4; i > 0; --i) {
      // Sizes stay below what a check of them would allocate.
      bytes[random() % bytes.size()] = static_cast<char>(random() % 4);
    }
    const absl::StatusOr<Plan> decoded = DecodePlan(bytes);
    if (decoded.ok()) {
      ASSERT_OK(CheckPlan(*decoded));
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1'000);
}

}  // namespace
}  // namespace gemini
