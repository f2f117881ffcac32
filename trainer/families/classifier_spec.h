// SPDX-License-Identifier: Apache-2.0
// Describes the head that classifies a sequence or an image. No Torch.
#pragma once
#include <cstdint>

namespace gemini::trainer {

// What a classifier reads of a sequence.
enum class ClassifierInput : uint8_t {
  kLastToken,
  kFirstToken,
  // What a linear layer of the model's width with a bias, the pooler, and the hyperbolic tangent
  // make of the first token.
  kPooledFirstToken,
};

// The head of a classification: a linear layer that reads one token of each sequence.
struct ClassifierSpec {
  ClassifierInput input = ClassifierInput::kLastToken;
  bool bias = false;
  double dropout = 0;  // Of what it reads.
};

}  // namespace gemini::trainer
