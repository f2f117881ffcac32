// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/memory_plan.h"

#include <limits>
#include <vector>

#include "gemini/byte_size.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/host_memory.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

const std::vector<TensorSpec> kTensors = {{"a", 3 * 64 * kKiB, TensorGroup::kTrainable},
                                          {"b", kKiB, TensorGroup::kTrainable}};

TEST(MemoryPlan, WhatIsGivenIsTaken) {
  RunConfig config;
  config.device_memory = 5 * kMiB;
  config.host_memory = 7 * kMiB;
  config.nvme = {{"/a", kGiB}, {"/b", 2 * kGiB}};
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanMemory(config, kTensors, {}, 64 * kKiB, kGiB));
  EXPECT_EQ(plan.bytes[Tier::kDevice], 5 * kMiB);
  EXPECT_EQ(plan.bytes[Tier::kHost], 7 * kMiB);
  EXPECT_EQ(plan.bytes[Tier::kNvme], 3 * kGiB);
  EXPECT_EQ(plan.chunk_bytes, 64 * kKiB);
}

TEST(MemoryPlan, AutoHostHoldsFourChunksABundleAndSpareOnes) {
  // `a` spans three chunks, `b` has one of its own: four bundles.
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan,
                       PlanMemory(RunConfig(), kTensors, {}, 64 * kKiB, kGiB));
  EXPECT_EQ(plan.bytes[Tier::kHost], (4 * 4 + SpareSlots({})) * 64 * kKiB);
  EXPECT_EQ(plan.bytes[Tier::kNvme], 0);
}

TEST(MemoryPlan, WhatIsFrozenHasOneChunk) {
  std::vector<TensorSpec> tensors = kTensors;
  tensors.push_back({"frozen", 64 * kKiB, TensorGroup::kFrozen});
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan,
                       PlanMemory(RunConfig(), tensors, {}, 64 * kKiB, kGiB));
  EXPECT_EQ(plan.bytes[Tier::kHost], (4 * 4 + 1 + SpareSlots({})) * 64 * kKiB);
}

TEST(MemoryPlan, AutoHostFollowsTheFormatOfTheState) {
  RunConfig config;
  config.precision = "bf16";
  config.moments = "8bit";
  // One of exactly a chunk spans two: scales take some of it.
  const std::vector<TensorSpec> tensors = {{"a", 64 * kKiB, TensorGroup::kTrainable}};
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanMemory(config, tensors, {}, 64 * kKiB, kGiB));
  EXPECT_EQ(plan.bytes[Tier::kHost], (2 * 4 + SpareSlots(config.format())) * 64 * kKiB);
}

TEST(MemoryPlan, AutoHostHasNoRoomForStatesWhoseHomeIsNvme) {
  RunConfig config;
  config.nvme = {{"/a", kGiB}};
  config.optimizer_tier = "nvme";
  for (const absl::string_view precision : {"fp32", "bf16"}) {
    config.precision = std::string(precision);
    const StateFormat format = {.element = config.element()};
    ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanMemory(config, kTensors, {}, 64 * kKiB, kGiB));
    // Four bundles, of each the parameter and the gradient.
    EXPECT_EQ(plan.bytes[Tier::kHost],
              (4 * 2 + SpareSlots(format) + StateWindowSlots(format)) * 64 * kKiB);
  }
}

TEST(MemoryPlan, WithNvmeAutoHostLeavesHalfOfTheMemory) {
  RunConfig config;
  config.nvme = {{"/a", kGiB}};
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan,
                       PlanMemory(config, kTensors, {}, 64 * kKiB, 2 * kMiB));
  EXPECT_EQ(plan.bytes[Tier::kHost], kMiB);
}

TEST(MemoryPlan, ActivationsBeyondAQuarterOfDeviceGetRoomInHost) {
  RunConfig config;
  config.batch = 2;
  config.sequence = 16;
  config.accumulate = 4;
  EXPECT_EQ(BoundaryActivationsOf(config, 3, {16 * 1024}).count, 0);
  config.micro_batch_schedule = "vertical";
  const BoundaryActivations activations =
      BoundaryActivationsOf(config, /*num_blocks=*/3, /*elements_of_row=*/{16 * 1024});
  EXPECT_EQ(activations.count, 12);
  EXPECT_EQ(activations.size_bytes(), 128 * kKiB);
  config.device_memory = 5 * kMiB;  // A quarter holds 10.
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan,
                       PlanMemory(config, kTensors, activations, 64 * kKiB, kGiB));
  EXPECT_EQ(plan.kept_activation_bytes, 5 * kMiB / 4);
  EXPECT_EQ(plan.host_activation_bytes, (2 * 2 + SpareSlots({})) * 64 * kKiB);
  EXPECT_EQ(plan.bytes[Tier::kHost],
            (4 * 4 + SpareSlots({})) * 64 * kKiB + plan.host_activation_bytes);
  config.device_memory = 6 * kMiB;  // Holds all.
  ASSERT_OK_AND_ASSIGN(const MemoryPlan larger,
                       PlanMemory(config, kTensors, activations, 64 * kKiB, kGiB));
  EXPECT_EQ(larger.host_activation_bytes, 0);
}

// Each of its tensors has chunks of its own.
TEST(MemoryPlan, ActivationsOfTwoTensorsGetRoomForBoth) {
  RunConfig config;
  config.batch = 2;
  config.micro_batch_schedule = "vertical";
  const BoundaryActivations activations =
      BoundaryActivationsOf(config, /*num_blocks=*/3, /*elements_of_row=*/{10 * 1024, 9 * 1024});
  EXPECT_EQ(activations.count, 3);
  EXPECT_EQ(activations.size_bytes(), 152 * kKiB);
  config.device_memory = kMiB;  // A quarter holds one.
  ASSERT_OK_AND_ASSIGN(const MemoryPlan plan,
                       PlanMemory(config, kTensors, activations, 64 * kKiB, kGiB));
  EXPECT_EQ(plan.host_activation_bytes, (2 * (2 + 2) + SpareSlots({})) * 64 * kKiB);
}

TEST(MemoryPlan, AutoDeviceIsWhatHostLeaves) {
  constexpr int64_t kMillion = 1'000'000;
  constexpr int64_t kAvailable = 1024 * kMillion;
  constexpr HostMemory kMemory = {.total_bytes = kAvailable, .available_bytes = kAvailable};
  RunConfig config;
  const auto device = [&](int64_t num_trained, int64_t num_frozen = 0) {
    return DeviceMemory(config, num_trained, num_frozen, kMemory);
  };
  EXPECT_EQ(device(kMillion), kAvailable / 4);
  EXPECT_EQ(device(kMillion, 100 * kMillion), kAvailable / 4);
  EXPECT_EQ(device(kMillion, 190 * kMillion),
            DefaultDeviceBytes(kMemory, (16 + 190 * 4) * kMillion));
  // Parameter, gradient and two moments, of four bytes each.
  EXPECT_EQ(device(48 * kMillion), DefaultDeviceBytes(kMemory, 48 * 16 * kMillion));
  EXPECT_LT(device(48 * kMillion), kAvailable / 4);
  EXPECT_EQ(device(std::numeric_limits<int64_t>::max()), kAvailable / 16);
  config.nvme = {{"/a", kGiB}};  // HOST is at most half.
  EXPECT_EQ(device(std::numeric_limits<int64_t>::max()), kAvailable / 4);
  config.host_memory = 700 * kMillion;
  EXPECT_EQ(device(kMillion), DefaultDeviceBytes(kMemory, 700 * kMillion));
  config.device_memory = kMiB;
  EXPECT_EQ(device(kMillion), kMiB);
}

}  // namespace
}  // namespace gemini::trainer
