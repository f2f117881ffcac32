// SPDX-License-Identifier: Apache-2.0
// Finds what a run asks of its model: the task that --task names, and the labels of its data, which
// a new head of a classification gets. A forecast asks the same.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "trainer/families/task_choice.h"

namespace gemini::trainer {

// `task` is what --task says. Reads the header of the file `data`; if that is empty, there is none,
// and labels are those of the model's config. Errors: those of TrainingData::TaskOf. NOT_FOUND:
// there is no such file.
absl::StatusOr<TaskWish> TaskWishOfRun(const std::string& task, const std::string& data);

}  // namespace gemini::trainer
