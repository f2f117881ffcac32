// SPDX-License-Identifier: Apache-2.0
// Chooses the task that a model is to learn: the one that was asked for, or the one that its
// config.json says.
// Errors: INVALID_ARGUMENT: a key of the wrong type. UNIMPLEMENTED: the family has no such task;
//         the message lists those that it has.
#pragma once
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "trainer/families/families.h"
#include "trainer/families/task_spec.h"

namespace gemini::trainer {

struct TaskWish {
  // One of kTaskNames. "auto": that of the config's key "architectures", or else the family's
  // first.
  std::string name = "auto";
  // The labels that a new head gets. Empty: those of the config.
  std::optional<TaskSpec> labels = {};
};

struct TaskChoice {
  TaskSpec task;
  std::string model_class;  // In transformers, for the key "architectures".
  // Whether its head may be missing in the files: the config says that they are of another task, or
  // the task was asked for and the config says nothing of it.
  bool is_new = false;
  bool names_labels = false;  // The config has the names of the task's labels, if it has any.
};

// `config` is an object, and `where` its source in messages.
absl::StatusOr<TaskChoice> ChooseTask(const nlohmann::json& config, absl::string_view where,
                                      const Family& family, const TaskWish& wish);

}  // namespace gemini::trainer
