// SPDX-License-Identifier: Apache-2.0
// Describes which rows of data a model can learn from. All rows are checked against it before a run
// begins.
#pragma once
#include <cstdint>
#include <optional>

#include "trainer/families/image_spec.h"
#include "trainer/families/task_spec.h"

namespace gemini::trainer {

struct RowNeeds {
  int64_t vocab_size = 0;
  int64_t num_token_types = 0;  // 0: the model knows no types.
  bool takes_padding = true;
  std::optional<ImageSpec> image = {};  // A model of images has one.
  int64_t num_sequences = 0;            // Of an alignment; 0: the model reads none.
  TaskSpec task = {};
};

}  // namespace gemini::trainer
