// SPDX-License-Identifier: Apache-2.0
// The layers that GPT-2 and OPT are made of, with the operators of transformers, so that bits
// agree.
// Memory: parameters are empty tensors of the options given; nothing is initialised.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "torch/nn/module.h"
#include "torch/types.h"
#include "trainer/checkpoint/hf_config.h"

namespace gemini::trainer {

// y = x W^T + b, weight [out, in].
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in, int64_t out, bool bias, const torch::TensorOptions& options);
  torch::Tensor Forward(const torch::Tensor& x) const;

 private:
  torch::Tensor weight_;
  torch::Tensor bias_;  // Undefined without a bias.
};

// y = x W + b, weight [in, out]: the Conv1D of GPT-2.
class Conv1d : public torch::nn::Module {
 public:
  Conv1d(int64_t in, int64_t out, const torch::TensorOptions& options);
  torch::Tensor Forward(const torch::Tensor& x) const;

 private:
  torch::Tensor weight_;
  torch::Tensor bias_;
};

class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t size, double epsilon, bool affine, const torch::TensorOptions& options);
  torch::Tensor Forward(const torch::Tensor& x) const;

 private:
  const int64_t size_;
  const double epsilon_;
  torch::Tensor weight_;  // Undefined when not affine.
  torch::Tensor bias_;
};

class Embedding : public torch::nn::Module {
 public:
  // The row of padding_token gets no gradient from a look-up; -1 for none.
  Embedding(int64_t count, int64_t size, int64_t padding_token,
            const torch::TensorOptions& options);
  torch::Tensor Forward(const torch::Tensor& ids) const;
  // The weight [count, size], for a head that is tied to it.
  const torch::Tensor& weight() const { return weight_; }

 private:
  const int64_t padding_token_;
  torch::Tensor weight_;
};

torch::Tensor Activate(Activation activation, const torch::Tensor& x);

// Causal attention over query, key, value [batch, sequence, heads * head size]; returns the same
// shape. `scale` multiplies the scores; dropout is drawn when `training`.
torch::Tensor CausalAttention(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, int64_t num_heads, double scale,
                              double dropout, bool training);

// An unnamed level of the module tree: "transformer" in "transformer.wte.weight".
class ModuleGroup : public torch::nn::Module {
 public:
  // Registers `child` as the next one and returns it.
  template <typename T>
  std::shared_ptr<T> Add(const std::string& name, std::shared_ptr<T> child) {
    return register_module(name, std::move(child));
  }
};

}  // namespace gemini::trainer
