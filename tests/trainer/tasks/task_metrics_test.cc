// SPDX-License-Identifier: Apache-2.0
#include "trainer/tasks/task_metrics.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::NanSensitiveDoubleEq;

auto Metric(const std::string& name, double value) {
  return AllOf(Field(&TaskMetric::name, name),
               Field(&TaskMetric::value, NanSensitiveDoubleEq(value)));
}

TaskSpec Classes(ProblemType problem) {
  return {.kind = TaskKind::kSequenceClassification, .problem = problem, .num_labels = 8};
}

// The routers' loss is in the total, and says nothing of the text.
TEST(TaskMetricsTest, PredictedTokensHaveThePerplexityOfTheirCrossEntropy) {
  const LossValues mean = {.total = 5, .of_labels = 2, .router = 30, .labels = 10};
  for (const TaskKind kind : {TaskKind::kCausal, TaskKind::kMasked}) {
    const std::vector<TaskMetric> metrics = MetricsOf({.kind = kind}, mean);
    EXPECT_THAT(metrics, ElementsAre(Metric("perplexity", std::exp(2.0))));
    EXPECT_EQ(Describe(metrics), ", perplexity 7.39");
  }
}

TEST(TaskMetricsTest, ASingleLabelHasItsAccuracyAndOfMoreThanFiveTheTopFive) {
  LossValues mean = {.total = 1, .of_labels = 1, .labels = 8, .hits = Hits{.first = 3}};
  const TaskSpec task = Classes(ProblemType::kSingleLabel);
  EXPECT_THAT(MetricsOf(task, mean), ElementsAre(Metric("accuracy", 0.375)));
  EXPECT_EQ(Describe(MetricsOf(task, mean)), ", accuracy 0.3750");
  mean.hits = Hits{.first = 3, .among_five = 7, .has_five = true};
  EXPECT_THAT(MetricsOf(task, mean), ElementsAre(Metric("accuracy", 0.375), Metric("top5", 0.875)));
  EXPECT_EQ(Describe(MetricsOf(task, mean)), ", accuracy 0.3750, top5 0.8750");
}

TEST(TaskMetricsTest, SeveralLabelsHaveThePartThatIsSaidRight) {
  const LossValues mean = {.labels = 16, .hits = Hits{.first = 12}};
  EXPECT_THAT(MetricsOf(Classes(ProblemType::kMultiLabel), mean),
              ElementsAre(Metric("accuracy", 0.75)));
}

TEST(TaskMetricsTest, ARegressionHasItsSquaredError) {
  const LossValues mean = {.total = 0.25, .of_labels = 0.125, .labels = 4};
  const std::vector<TaskMetric> metrics = MetricsOf(Classes(ProblemType::kRegression), mean);
  EXPECT_THAT(metrics, ElementsAre(Metric("mean_squared_error", 0.125)));
  EXPECT_EQ(Describe(metrics), ", mean squared error 0.1250");
}

TEST(TaskMetricsTest, WithoutALabelThereIsNoAccuracy) {
  EXPECT_THAT(MetricsOf(Classes(ProblemType::kSingleLabel), LossValues()),
              ElementsAre(Metric("accuracy", std::nan(""))));
  EXPECT_THAT(Describe({}), IsEmpty());
}

}  // namespace
}  // namespace gemini::trainer
