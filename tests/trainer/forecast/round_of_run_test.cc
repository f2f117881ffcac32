// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/round_of_run.h"

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

RunConfig SomeRun() {
  RunConfig config;
  config.batch = 3;
  config.sequence = 17;
  config.accumulate = 5;
  config.precision = "bf16";
  config.optimizer = "lamb";
  config.moments = "8bit";
  config.optimizer_tier = "nvme";
  return config;
}

TEST(RoundOfRunTest, HasWhatTheRunIsTold) {
  RunConfig config = SomeRun();
  const RoundShape round = RoundOf(config);
  EXPECT_TRUE(round.train);
  EXPECT_EQ(round.batch, 3);
  EXPECT_EQ(round.sequence, 17);
  EXPECT_EQ(round.micro_batches, 5);
  EXPECT_FALSE(round.recompute);
  EXPECT_EQ(round.format(), config.format());
  EXPECT_TRUE(round.states_on_nvme);
  EXPECT_TRUE(round.on_cpu);
  config.recompute = true;
  config.device = "cuda:0";
  EXPECT_TRUE(RoundOf(config).recompute);
  EXPECT_FALSE(RoundOf(config).on_cpu);
}

TEST(RoundOfRunTest, TheVerticalScheduleIsOneMicroBatchThatIsRecomputed) {
  RunConfig config = SomeRun();
  config.micro_batch_schedule = "vertical";
  EXPECT_EQ(RoundOf(config).micro_batches, 1);
  EXPECT_TRUE(RoundOf(config).recompute);
}

}  // namespace
}  // namespace gemini::trainer
