// SPDX-License-Identifier: Apache-2.0
// Our update kernel beside torch::optim::AdamW, both fed the same recorded gradients of a real run.
#include <cstdio>
#include <vector>

#include "client/kernels/update_kernel.h"
#include "gtest/gtest.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/optim/adamw.h"
#include "torch/types.h"

namespace gemini::trainer {
namespace {

constexpr int kSteps = 20;

// Our side: one tensor with its moments.
struct Parameter {
  torch::Tensor value;
  torch::Tensor exp_avg;
  torch::Tensor exp_avg_sq;
};

void Update(Parameter& parameter, const torch::Tensor& grad,
            const client::UpdateSettings& settings) {
  float* const value = parameter.value.data_ptr<float>();
  float* const exp_avg = parameter.exp_avg.data_ptr<float>();
  float* const exp_avg_sq = parameter.exp_avg_sq.data_ptr<float>();
  client::UpdateElements(settings,
                         {.param = value,
                          .grad = grad.data_ptr<float>(),
                          .exp_avg = exp_avg,
                          .exp_avg_sq = exp_avg_sq,
                          .new_param = value,
                          .new_exp_avg = exp_avg,
                          .new_exp_avg_sq = exp_avg_sq},
                         grad.numel());
}

TEST(AdamWParityTest, TwentyRecordedGradientsMoveEveryTensorAsTorchDoes) {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Embedding(97, 48), torch::nn::Linear(48, 192),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({192})),
                              torch::nn::Linear(192, 97));
  const std::vector<torch::Tensor> parameters = model->parameters();
  std::vector<Parameter> ours;
  for (const torch::Tensor& parameter : parameters) {
    ours.push_back({.value = parameter.detach().clone(),
                    .exp_avg = torch::zeros_like(parameter),
                    .exp_avg_sq = torch::zeros_like(parameter)});
  }
  client::UpdateSettings settings = {
      .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  torch::optim::AdamW torch_optimizer(parameters, torch::optim::AdamWOptions(settings.learning_rate)
                                                      .betas({settings.beta1, settings.beta2})
                                                      .eps(settings.epsilon)
                                                      .weight_decay(settings.weight_decay));
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor tokens = torch::randint(97, {16});
    torch_optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(tokens), tokens.roll(1)).backward();
    // Recorded before Torch's step, which might change it in place.
    std::vector<torch::Tensor> recorded;
    for (const torch::Tensor& parameter : parameters) recorded.push_back(parameter.grad().clone());
    torch_optimizer.step();
    settings.step = step;
    for (size_t i = 0; i < ours.size(); ++i) Update(ours[i], recorded[i], settings);
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    const double difference = (ours[i].value - parameters[i]).norm().item<double>();
    const double size = parameters[i].norm().item<double>();
    std::printf("tensor %zu: %.2e\n", i, difference / size);
    EXPECT_LE(difference, 1e-6 * size) << "tensor " << i;
  }
}

}  // namespace
}  // namespace gemini::trainer
