// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/task_wish_of_run.h"

#include <utility>

#include "gemini/system/status_macros.h"
#include "trainer/data/training_data.h"

namespace gemini::trainer {

absl::StatusOr<TaskWish> TaskWishOfRun(const std::string& task, const std::string& data) {
  TaskWish wish = {.name = task};
  if (data.empty()) return wish;
  GEMINI_ASSIGN_OR_RETURN(TaskSpec of_data, TrainingData::TaskOf(data));
  if (of_data.is_classification()) wish.labels = std::move(of_data);
  return wish;
}

}  // namespace gemini::trainer
