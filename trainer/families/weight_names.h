// SPDX-License-Identifier: Apache-2.0
// Which parameter a tensor of a model's files is.
#pragma once
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gemini::trainer {

struct WeightNames {
  // What the names of all parameters but the head's begin with, up to a dot: "model.decoder.".
  // Files of the bare model lack it, or its first words.
  std::string root = {};
  std::string embedding = {};  // The parameter that a tied head is.
  std::string head = "lm_head.weight";
  // Tensors whose names end so are no parameters: constants that old files hold.
  std::vector<std::string> ignored_endings = {};

  // Returns the name of the parameter.
  std::string ParameterOf(absl::string_view tensor) const;
  bool IsIgnored(absl::string_view tensor) const;
};

}  // namespace gemini::trainer
