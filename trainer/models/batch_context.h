// SPDX-License-Identifier: Apache-2.0
// What all blocks read of a batch, made once for it. No buffers of the model: they would be moved
// and saved with it.
#pragma once
#include <cstdint>

#include "torch/types.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

struct BatchContext {
  // Of the angle by which each element of a head is rotated: [sequence, head size], in the type of
  // the hidden state. Undefined where heads are not rotated.
  torch::Tensor cosine = {};
  torch::Tensor sine = {};
};

// Makes the context of rows of `sequence` tokens. `options` are those of the hidden state.
BatchContext MakeRotaryContext(const RotarySpec& rotary, int64_t head_size, int64_t sequence,
                               const torch::TensorOptions& options);

}  // namespace gemini::trainer
