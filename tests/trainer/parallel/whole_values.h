// SPDX-License-Identifier: Apache-2.0
// What tests of ranks with parts of a model share that compare them with one that has the whole.
#pragma once
#include <map>
#include <string>

#include "ATen/core/grad_mode.h"
#include "torch/types.h"
#include "trainer/parallel/gathered_model.h"

namespace gemini::trainer {

// Gives the pieces that a rank has the values of the whole tensors, by the names of those.
inline void FillPieces(const GatheredModel& model,
                       const std::map<std::string, torch::Tensor>& whole) {
  const at::NoGradGuard no_grad;
  for (const auto& unit : model.units()) {
    for (size_t i = 0; i < unit->pieces().size(); ++i) {
      const ShardPiece& piece = unit->pieces()[i];
      const torch::Tensor& tensor =
          whole.at(unit->tensors()[static_cast<size_t>(piece.tensor)].name);
      unit->parameters()[i].flatten().copy_(tensor.flatten().narrow(0, piece.first, piece.count));
    }
  }
}

// Adds a gradient to a sum, which may be undefined.
inline void AddTo(torch::Tensor& sum, const torch::Tensor& one) {
  sum = sum.defined() ? sum + one : one;
}

}  // namespace gemini::trainer
