// SPDX-License-Identifier: Apache-2.0
#include "trainer/tasks/task_metrics.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace gemini::trainer {
namespace {

constexpr char kPerplexity[] = "perplexity";

}  // namespace

std::vector<TaskMetric> MetricsOf(const TaskSpec& task, const LossValues& mean) {
  if (task.predicts_tokens()) return {{kPerplexity, std::exp(mean.of_labels)}};
  if (task.problem == ProblemType::kRegression) return {{"mean_squared_error", mean.of_labels}};
  const Hits hits = mean.hits.value_or(Hits());
  const auto part = [&mean](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(mean.labels);
  };
  std::vector<TaskMetric> metrics = {{"accuracy", part(hits.first)}};
  if (hits.has_five) metrics.push_back({"top5", part(hits.among_five)});
  return metrics;
}

std::string Describe(const std::vector<TaskMetric>& metrics) {
  std::string text;
  for (const TaskMetric& metric : metrics) {
    absl::StrAppendFormat(&text, ", %s %.*f", absl::StrReplaceAll(metric.name, {{"_", " "}}),
                          metric.name == kPerplexity ? 2 : 4, metric.value);
  }
  return text;
}

}  // namespace gemini::trainer
