// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/learning_rate.h"

#include <vector>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using Schedule = LearningRate::Schedule;

// The oracle: what torch.optim.AdamW and the schedules of transformers used, printed by Python for
// lr 3e-4, 3 steps of warm-up (the last: none), 10 steps; steps 0 to 10.
struct Expected {
  Schedule schedule;
  int64_t warmup_steps;
  std::vector<double> rates;
};
const Expected kExpected[] = {
    {Schedule::kConstant,
     3,
     {0.0, 9.999999999999999e-05, 0.00019999999999999998, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003,
      0.0003, 0.0003, 0.0003}},
    {Schedule::kLinear,
     3,
     {0.0, 9.999999999999999e-05, 0.00019999999999999998, 0.0003, 0.0002571428571428571,
      0.00021428571428571427, 0.0001714285714285714, 0.00012857142857142855, 8.57142857142857e-05,
      4.285714285714285e-05, 0.0}},
    {Schedule::kCosine,
     3,
     {0.0, 9.999999999999999e-05, 0.00019999999999999998, 0.0003, 0.0002851453301853628,
      0.00024352347027881003, 0.00018337814009344714, 0.00011662185990655284,
      5.6476529721189974e-05, 1.4854669814637143e-05, 0.0}},
    {Schedule::kLinear,
     0,
     {0.0003, 0.00027, 0.00023999999999999998, 0.00020999999999999998, 0.00017999999999999998,
      0.00015, 0.00011999999999999999, 8.999999999999999e-05, 5.9999999999999995e-05,
      2.9999999999999997e-05, 0.0}}};

TEST(LearningRate, EqualsTheSchedulesOfTransformers) {
  for (const Expected& expected : kExpected) {
    const LearningRate rate(expected.schedule, 3e-4, expected.warmup_steps, 10);
    for (size_t step = 0; step < expected.rates.size(); ++step) {
      // Two rounded operations more or less: 4 units in the last place.
      EXPECT_NEAR(rate.At(static_cast<int64_t>(step)), expected.rates[step], 3e-19)
          << "step " << step << " of schedule " << static_cast<int>(expected.schedule);
    }
  }
}

TEST(LearningRate, PastTheEndItStaysWhereTheScheduleEnds) {
  EXPECT_EQ(LearningRate(Schedule::kConstant, 1, 0, 4).At(9), 1);
  EXPECT_EQ(LearningRate(Schedule::kLinear, 1, 0, 4).At(9), 0);
  EXPECT_EQ(LearningRate(Schedule::kCosine, 1, 0, 4).At(9), 0);
}

TEST(LearningRate, AWarmUpOfAllStepsDividesByNothing) {
  EXPECT_EQ(LearningRate(Schedule::kCosine, 1, 4, 4).At(3), 0.75);
  EXPECT_EQ(LearningRate(Schedule::kConstant, 1, 0, 0).At(0), 1);
}

TEST(LearningRate, NamesOfSchedulesAreChecked) {
  EXPECT_THAT(LearningRate::ParseSchedule("cosine"), IsOkAndHolds(Schedule::kCosine));
  EXPECT_THAT(LearningRate::ParseSchedule("Cosine"), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::trainer
