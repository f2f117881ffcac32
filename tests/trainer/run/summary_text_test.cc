// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/summary_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SummaryTextTest, SaysHowFarARunCameAndHowOftenItLeftItsPlan) {
  RunConfig config;
  config.steps = 10;
  TrainingSummary summary;
  summary.first_step = 4;
  summary.step = 9;
  summary.first_loss = 6.5;
  summary.last_loss = 5.25;
  summary.duration = absl::Seconds(4);
  summary.items = 1000;
  summary.checkpoint = "out/checkpoint-9";
  EXPECT_THAT(SummaryText(config, summary),
              AllOf(HasSubstr("9 of 10 (5 in this run)"), HasSubstr("250 tokens a second"),
                    HasSubstr("6.5000 at step 1, 5.2500 at the end"), HasSubstr("out/checkpoint-9"),
                    Not(HasSubstr("Evaluation")), Not(HasSubstr("DEVICE"))));

  summary.eval_loss = 5.5;
  summary.eval_metrics = {{"accuracy", 0.75}};
  summary.checkpoint.clear();
  summary.memory.device_budget_bytes = 3 << 20;
  summary.memory.phases.planned_rounds = 3;
  summary.memory.phases.divergences[static_cast<size_t>(Divergence::kNonModel)] = 2;
  EXPECT_THAT(
      SummaryText(config, summary),
      AllOf(HasSubstr("Evaluation   loss 5.5000, accuracy 0.7500"),
            HasSubstr("of a budget of 3 MiB"), HasSubstr("followed 3 times, left 2 (non-model 2)"),
            HasSubstr("Checkpoint   none"), Not(HasSubstr("Most a rank"))));
}

TEST(SummaryTextTest, SaysWhatTheNeediestRankHas) {
  TrainingSummary summary;
  summary.memory.device_budget_bytes = 8 << 20;
  summary.neediest = RankNeeds{.device_peak_bytes = 3145729, .host_bytes = 2 << 20};
  EXPECT_THAT(
      SummaryText(RunConfig(), summary),
      HasSubstr("Most a rank  DEVICE peak 3 MiB (3145729 bytes), HOST 2 MiB (2097152 bytes)\n"));
}

}  // namespace
}  // namespace gemini::trainer
