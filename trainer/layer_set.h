// SPDX-License-Identifier: Apache-2.0
// The layers that a model is made of, and the set that makes them: a model asks a LayerSet for
// each, so that another set can split or adapt them in one place. So far the model takes them to be
// whole: it cuts query, key and value apart by the sizes of its heads, and computes a tied head
// itself.
// Names:  a layer's tensors are "weight" and "bias".
// Memory: parameters are empty tensors of the set's options; nothing is initialised.
// Thread: one at a time.
// Errors: Torch's exceptions pass through.
#pragma once
#include <cstdint>
#include <memory>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"

namespace gemini::trainer {

// Forward takes a contiguous tensor [..., in] of the parameters' dtype and returns [..., out] of
// it.
class Layer : public torch::nn::Module {
 public:
  virtual torch::Tensor Forward(const torch::Tensor& x) const = 0;
};

// Forward takes int64 ids of any shape, each in [0, rows), and returns [..., width].
class EmbeddingLayer : public Layer {
 public:
  // The table [rows, width], for a head that is tied to it.
  virtual const torch::Tensor& weight() const = 0;
};

// What a linear layer does in the model, by which a set can tell how to split it.
enum class Role : uint8_t {
  kProjectIn,
  kQueryKeyValue,  // All three in one matrix, or one of them.
  kAttentionOut,
  kFeedIn,  // Also the gate.
  kFeedOut,
  kRouter,  // Its output says through which experts a token goes, or how much of one it gets.
  kProjectOut,
  kHead,
};

struct LinearShape {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  MatrixLayout layout = MatrixLayout::kOutIn;
};

// Its layers may outlive it.
class LayerSet {
 public:
  virtual ~LayerSet() = default;
  // The row of `padding_token` gets no gradient from a look-up; -1 for none.
  virtual std::shared_ptr<EmbeddingLayer> Embedding(int64_t rows, int64_t width,
                                                    int64_t padding_token) = 0;
  virtual std::shared_ptr<Layer> Norm(const NormSpec& norm, int64_t width) = 0;
  // Norms each head, with weights [heads, head_size] and without a bias. Forward takes [..., heads,
  // head_size].
  virtual std::shared_ptr<Layer> HeadNorm(const NormSpec& norm, int64_t heads,
                                          int64_t head_size) = 0;
  virtual std::shared_ptr<Layer> Linear(const LinearShape& shape, Role role) = 0;
};

}  // namespace gemini::trainer
