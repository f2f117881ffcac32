// SPDX-License-Identifier: Apache-2.0
// Reads and checks the config.json of a Hugging Face model: a key that is known to change the
// arithmetic is either honoured or refused by name, and those that are not known are listed.
// Errors: INVALID_ARGUMENT: not JSON, a value of the wrong type or out of its range. UNIMPLEMENTED:
// a model type, activation or option that we do not have; the message lists what we have.
#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/task_choice.h"

namespace gemini::trainer {

struct HfConfig {
  std::string model_type;    // The family's (families.h).
  std::string model_class;   // That of the spec's task, for the key "architectures".
  bool is_new_task = false;  // These two are TaskChoice's.
  bool names_labels = false;
  ModelSpec spec;
  std::string json;  // The text as read: saving keeps every field.
  // Keys that we do not know: whether they change the arithmetic cannot be told. A key of an object
  // inside has a path, "rope_scaling.alpha".
  std::vector<std::string> unknown_keys = {};
};

// Parses a config; `where` names the source in messages. The spec is for the task that is wished
// for (task_choice.h).
absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json, absl::string_view where,
                                       const TaskWish& wish = {});
// Reads `directory`/config.json. NOT_FOUND: no directory, or no such file in it.
absl::StatusOr<HfConfig> ReadHfConfig(const std::string& directory, const TaskWish& wish = {});

// Returns what people call the model of a directory: "models/a (bert, masked)".
std::string TitleOf(const std::string& directory, const HfConfig& config);

}  // namespace gemini::trainer
