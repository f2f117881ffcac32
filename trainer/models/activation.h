// SPDX-License-Identifier: Apache-2.0
// Computes the activations between a model's linear layers.
#pragma once
#include "ATen/ops/gelu.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/silu.h"
#include "c10/util/Exception.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Returns the activation of each element of x.
inline torch::Tensor Activate(Activation activation, const torch::Tensor& x) {
  switch (activation) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return at::silu(x);
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace gemini::trainer
