// SPDX-License-Identifier: Apache-2.0
// The config.json of a Hugging Face model, checked: a key that is known to change the arithmetic is
// either honoured or refused by name, and those that are not known are listed.
// Errors: INVALID_ARGUMENT: not JSON, a value of the wrong type or out of its range. UNIMPLEMENTED:
// a model type, activation or option that we do not have; the message lists what we have.
#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

struct HfConfig {
  std::string model_type;  // This and the next are the family's (families.h).
  std::string causal_class;
  ModelSpec spec;
  std::string json;  // The text as read: saving keeps every field.
  // Keys that we do not know: whether they change the arithmetic cannot be told. A key of an object
  // inside has a path, "rope_scaling.alpha".
  std::vector<std::string> unknown_keys = {};
};

// Parses a config; `where` names the source in messages.
absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json, absl::string_view where);
// Reads `directory`/config.json. NOT_FOUND: no directory, or no such file in it.
absl::StatusOr<HfConfig> ReadHfConfig(const std::string& directory);

}  // namespace gemini::trainer
