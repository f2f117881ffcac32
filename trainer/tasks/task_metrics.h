// SPDX-License-Identifier: Apache-2.0
// Computes what is told about an evaluation beside its loss: numbers that a task's users compare.
// Pure: no I/O, no clock.
#pragma once
#include <string>
#include <vector>

#include "trainer/families/task_spec.h"
#include "trainer/tasks/loss_values.h"

namespace gemini::trainer {

struct TaskMetric {
  std::string name;  // As in the metrics file, behind "eval_".
  double value = 0;
};

// Returns the metrics of an evaluation with this mean:
//     causal, masked     perplexity          the exponential of the cross entropy
//     single label       accuracy            the part of rows whose first choice is the label
//                        top5                the part of rows with the label among five; of more
//                                            than five labels
//     several labels     accuracy            the part of labels that are said right
//     regression         mean_squared_error
std::vector<TaskMetric> MetricsOf(const TaskSpec& task, const LossValues& mean);

// Returns them as text for people, which begins with a comma: ", perplexity 12.34".
std::string Describe(const std::vector<TaskMetric>& metrics);

}  // namespace gemini::trainer
