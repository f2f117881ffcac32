// SPDX-License-Identifier: Apache-2.0
// Small models that use parameters in every way that placement could get wrong.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "torch/nn/functional/activation.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/types.h"

namespace gemini::client::hooks {

// What they have in common: a loss from a seed.
struct TestModel : torch::nn::Module {
  virtual at::Tensor Loss(int64_t seed) = 0;
};

// Pre-norm attention blocks, head tied to the embedding, views and chunks of parameters, an
// in-place operator, a parameter that is frozen and one that is not used.
struct Transformer : TestModel {
  static constexpr int64_t kVocabulary = 300, kWidth = 48, kHeads = 4;
  Transformer() {
    embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth));
    positions = register_parameter("positions", torch::randn({16, kWidth}) * 0.02);
    for (int i = 0; i < 2; ++i) {
      const std::string name = "block" + std::to_string(i);
      norms.push_back(register_module(name + "norm",
                                      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}))));
      qkv.push_back(register_module(name + "qkv", torch::nn::Linear(kWidth, 3 * kWidth)));
      mlp_in.push_back(register_module(name + "in", torch::nn::Linear(kWidth, 4 * kWidth)));
      mlp_out.push_back(register_module(name + "out", torch::nn::Linear(4 * kWidth, kWidth)));
    }
    head = register_parameter("head", embedding->weight);  // Tied.
    unused = register_parameter("unused", torch::randn({100}));
    frozen = register_parameter("frozen", torch::randn({kWidth}), /*requires_grad=*/false);
  }
  at::Tensor Loss(int64_t seed) override {
    torch::manual_seed(seed);
    const at::Tensor tokens = torch::randint(kVocabulary, {3, 16}, torch::kLong);
    at::Tensor x = embedding->forward(tokens) + positions.narrow(0, 0, 16).unsqueeze(0);
    for (size_t i = 0; i < qkv.size(); ++i) {
      const at::Tensor normed = norms[i]->forward(x);
      std::vector<at::Tensor> parts = qkv[i]->forward(normed).chunk(3, -1);
      for (at::Tensor& part : parts) part = part.view({3, 16, kHeads, -1}).transpose(1, 2);
      const at::Tensor attention =
          at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
      x = x + attention.transpose(1, 2).reshape({3, 16, kWidth});
      x = x + mlp_out[i]->forward(mlp_in[i]->forward(x).relu_());
    }
    x = x * frozen;
    const at::Tensor logits = x.matmul(head.t());
    return torch::nll_loss(torch::log_softmax(logits.view({-1, kVocabulary}), -1),
                           tokens.view(-1)) +
           // Index operators take Tensor?[].
           positions.index({torch::tensor({1, 3})}).square().sum() * 0.01;
  }
  torch::nn::Embedding embedding{nullptr};
  at::Tensor positions, head, unused, frozen;
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> qkv, mlp_in, mlp_out;
};

// Running statistics change behind schema and version counter.
struct ConvNet : TestModel {
  ConvNet() {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 24, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(24));
    fc = register_module("fc", torch::nn::Linear(24 * 8 * 8, 10));
  }
  at::Tensor Loss(int64_t seed) override {
    torch::manual_seed(seed);
    const at::Tensor x = torch::randn({4, 3, 8, 8});
    return fc->forward(norm->forward(conv->forward(x)).relu().flatten(1)).logsumexp(1).mean();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};

// A tensor that spans many chunks, between small ones.
struct Wide : TestModel {
  Wide() {
    a = register_module("a", torch::nn::Linear(32, 40));
    wide = register_module("wide", torch::nn::Linear(40, 3001));
    b = register_module("b", torch::nn::Linear(3001, 5));
  }
  at::Tensor Loss(int64_t seed) override {
    torch::manual_seed(seed);
    return b
        ->forward(
            wide->forward(a->forward(torch::randn({2, 32}).to(a->weight.scalar_type())).tanh())
                .tanh())
        .square()
        .sum();
  }
  torch::nn::Linear a{nullptr}, wide{nullptr}, b{nullptr};
};

// A tied weight once.
inline std::vector<at::Tensor> UniqueParameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> unique;
  for (const at::Tensor& parameter : module.parameters()) {
    bool known = false;
    for (const at::Tensor& other : unique) known = known || other.is_same(parameter);
    if (!known) unique.push_back(parameter);
  }
  return unique;
}

}  // namespace gemini::client::hooks
