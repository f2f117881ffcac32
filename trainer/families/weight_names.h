// SPDX-License-Identifier: Apache-2.0
// How the tensors of a model's files lead to its parameters: files of different years and model
// classes name the same parameter differently.
#pragma once
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gemini::trainer {

struct WeightNames {
  // What the names of all parameters but the head's begin with: "model.decoder.". It ends in a dot,
  // or is empty. Files of the bare model lack it, or its first words.
  std::string root = {};
  std::string embedding = {};  // The parameter that a tied head is.
  std::string head = "lm_head.weight";
  // Tensors whose names end so are no parameters: constants that old files hold.
  std::vector<std::string> ignored_endings = {};

  // Returns the name of the parameter that a tensor of a file is.
  std::string ParameterOf(absl::string_view tensor) const;
  // Whether the tensor is no parameter, and is not read.
  bool IsIgnored(absl::string_view tensor) const;
  // Whether the tensor is of a head for another task, such as a classifier's.
  static bool IsOfAnotherTask(absl::string_view tensor);
  // Whether it is of one that a model has in place of a language model's head, and not beside it.
  static bool IsInPlaceOfHead(absl::string_view tensor);
};

}  // namespace gemini::trainer
