// SPDX-License-Identifier: Apache-2.0
// Maps the tensors of a model's files to its parameters: files of different years and model classes
// name the same parameter differently.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace gemini::trainer {

struct WeightNames {
  // What the names of all parameters but the heads' begin with: "model.decoder.". It ends in a dot,
  // or is empty. Files of the bare model lack it, or its first words.
  std::string root = {};
  std::string embedding = {};           // The parameter that a tied head is.
  std::string head = "lm_head.weight";  // Of a language model; empty where another task has none.
  // What the names of the parameters begin with that the task's head has of its own: "lm_head.".
  std::vector<std::string> own_heads = {};
  // The same of heads for other tasks that only files of this family have.
  std::vector<std::string> other_heads = {};
  // Tensors whose names end so are no parameters: constants that old files hold.
  std::vector<std::string> ignored_endings = {};
  // How names end in old files, and how they end since: "LayerNorm.gamma", "LayerNorm.weight".
  std::vector<std::pair<std::string, std::string>> old_endings = {};

  // Returns the name of the parameter that a tensor of a file is.
  std::string ParameterOf(absl::string_view tensor) const;
  // Whether the tensor is no parameter, and is not read.
  bool IsIgnored(absl::string_view tensor) const;
  // Whether the parameter is of the task's own head.
  bool IsOfOwnHead(absl::string_view parameter) const;
  // Whether it is of a head for another task, such as a classifier's.
  bool IsOfAnotherTask(absl::string_view parameter) const;
  // Whether such a one is in place of the task's own head, and not beside it.
  bool IsInPlaceOfHead(absl::string_view parameter) const;
};

}  // namespace gemini::trainer
