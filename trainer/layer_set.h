// SPDX-License-Identifier: Apache-2.0
// The seam between models and the layers that they are made of. A model asks a set for its layers
// and makes none of its own, so that another set can split them among ranks, or adapt them, in one
// place.
// Names:  of tensors: a layer's are "weight" and "bias".
// Memory: parameters are empty tensors of the set's options; nothing is initialised.
#pragma once
#include <cstdint>
#include <memory>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// One tensor in, one out, of the same shape but for the last dimension.
class Layer : public torch::nn::Module {
 public:
  virtual torch::Tensor Forward(const torch::Tensor& x) const = 0;
};

// A look-up: ids of any shape in, [..., width] out.
class EmbeddingLayer : public Layer {
 public:
  // The table [rows, width], for a head that is tied to it.
  virtual const torch::Tensor& weight() const = 0;
};

// What a linear layer is to the model, by which a set may split it.
enum class Role : uint8_t {
  kProjectIn,
  kQueryKeyValue,  // Also of each alone.
  kAttentionOut,
  kFeedIn,
  kFeedOut,
  kProjectOut,
  kHead,
};

struct LinearShape {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  MatrixLayout layout = MatrixLayout::kOutIn;
};

class LayerSet {
 public:
  virtual ~LayerSet() = default;
  // The row of `padding_token` gets no gradient from a look-up; -1 for none.
  virtual std::shared_ptr<EmbeddingLayer> Embedding(int64_t rows, int64_t width,
                                                    int64_t padding_token) = 0;
  virtual std::shared_ptr<Layer> Norm(const NormSpec& norm, int64_t width) = 0;
  virtual std::shared_ptr<Layer> Linear(const LinearShape& shape, Role role) = 0;
};

}  // namespace gemini::trainer
