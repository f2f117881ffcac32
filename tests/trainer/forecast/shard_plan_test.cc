// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/shard_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/communicator_dry.h"
#include "trainer/parallel/part_of_run.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kAvailableBytes = int64_t{8} << 30;

class PlanShardsTest : public ::testing::Test {
 protected:
  PlanShardsTest() {
    config_.batch = 2;
    config_.sequence = 64;
    config_.device_memory = int64_t{64} << 20;
    config_.zero = "3";
  }

  absl::StatusOr<ShardPlan> Plan() {
    const ModelSpec spec =
        ParseHfConfig(R"({"model_type":"gpt2","vocab_size":512,"n_positions":64,"n_embd":64,
                          "n_layer":2,"n_head":4})",
                      "config")
            ->spec;
    const RankLayout layout = *LayoutOf(config_, /*num_ranks=*/2);
    CommunicatorDry communicator(/*rank=*/0, /*num_ranks=*/2);
    const PartOfRun part = *MakePartOfRun(
        spec, config_, layout, *StagesOfRun(spec, config_, layout), communicator, torch::kCPU);
    return PlanShards(config_, *part.model, layout, /*rank=*/0, kAvailableBytes);
  }

  RunConfig config_;
};

TEST_F(PlanShardsTest, ChunksWasteLittleOfHost) {
  ASSERT_OK_AND_ASSIGN(const ShardPlan chosen, Plan());
  EXPECT_OK(chosen.floor);
  EXPECT_EQ(chosen.memory.bytes[Tier::kDevice], config_.device_memory);
  for (int64_t bytes = int64_t{16} << 10; bytes <= int64_t{1} << 20; bytes *= 2) {
    config_.chunk_size = bytes;
    ASSERT_OK_AND_ASSIGN(const ShardPlan asked, Plan());
    EXPECT_EQ(asked.memory.chunk_bytes, bytes);
    EXPECT_LE(static_cast<double>(chosen.memory.bytes[Tier::kHost]),
              1.02 * static_cast<double>(asked.memory.bytes[Tier::kHost]))
        << bytes;
  }
}

TEST_F(PlanShardsTest, ADeviceInWhichNoStepRunsIsRefused) {
  config_.device_memory = 64 << 10;
  EXPECT_THAT(Plan(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("64 KiB")));
}

TEST_F(PlanShardsTest, InTheVerticalScheduleActivationsThatLeaveDeviceAreInHost) {
  config_.accumulate = 64;
  config_.device_memory = int64_t{4} << 20;
  ASSERT_OK_AND_ASSIGN(const ShardPlan beside, Plan());
  EXPECT_EQ(beside.memory.host_activation_bytes, 0);
  config_.micro_batch_schedule = "vertical";
  ASSERT_OK_AND_ASSIGN(const ShardPlan plan, Plan());
  EXPECT_GT(plan.memory.host_activation_bytes, 0);
}

}  // namespace
}  // namespace gemini::trainer
