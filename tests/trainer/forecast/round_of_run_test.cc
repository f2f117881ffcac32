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

TEST(RoundOfRunTest, TablesAreCutWhereTheyAndTheirGradientsExceedAnEighthOfDevice) {
  const ModelSpec spec = {.vocab_size = 128256, .embedding_width = 4096};
  constexpr int64_t kGiB = int64_t{1} << 30;
  RunConfig config;
  config.precision = "bf16";
  EXPECT_EQ(VocabularyBlocks(spec, config, 24 * kGiB), 1);
  EXPECT_GT(VocabularyBlocks(spec, config, 6 * kGiB), 2);
  const ModelSpec narrow = {.vocab_size = 50257, .embedding_width = 1600};
  EXPECT_EQ(VocabularyBlocks(narrow, config, kGiB), 3);
  EXPECT_EQ(VocabularyBlocks(narrow, config, kGiB / 16), 16);
  config.device = "cuda:0";  // It takes larger pieces.
  EXPECT_EQ(VocabularyBlocks(narrow, config, kGiB / 16), 3);
  config.device = "cpu";
  config.optimizer = "lamb";
  EXPECT_EQ(VocabularyBlocks(spec, config, 6 * kGiB), 1);
  config.optimizer = "adamw";
  config.moments = "8bit";
  EXPECT_GT(VocabularyBlocks(spec, config, 6 * kGiB), 2);
  config.moment_rounding = "stochastic";
  EXPECT_EQ(VocabularyBlocks(spec, config, 6 * kGiB), 1);
  config.moment_rounding = "nearest";
  config.reference = true;
  EXPECT_EQ(VocabularyBlocks(spec, config, 6 * kGiB), 1);
  config.vocabulary_blocks = 5;
  EXPECT_EQ(VocabularyBlocks(spec, config, 24 * kGiB), 5);
}

}  // namespace
}  // namespace gemini::trainer
