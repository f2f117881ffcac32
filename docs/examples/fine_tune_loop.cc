// SPDX-License-Identifier: Apache-2.0
// A fine-tuning loop: matrices are decayed and biases are not, gradients are accumulated over two
// batches and clipped, and the rate falls. It trains, evaluates, saves, goes on, loads and goes on
// from there.
#include <gemini/gemini.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cstdio>
#include <string>
#include <vector>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 12; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(128, 128)));
    }
    out = register_module("out", torch::nn::Linear(128, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (torch::nn::Linear& layer : layers) x = x + 0.1 * torch::gelu(layer->forward(x));
    return out->forward(x);
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor Loss(Net& model) {
  const torch::Tensor x = torch::randn({8, 128});
  return (model->forward(x) - x.mean(1, true)).square().mean();
}

void Train(Net& model, torch::optim::Optimizer& optimizer, int steps) {
  torch::optim::StepLR schedule(optimizer, 10, 0.8);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int batch = 0; batch < 2; ++batch) (Loss(model) / 2).backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    schedule.step();
  }
}

double Evaluate(Net& model) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_gradient;
  double sum = 0;
  for (int batch = 0; batch < 8; ++batch) sum += Loss(model).item<double>() / 8;
  return sum;
}

std::vector<torch::optim::OptimizerParamGroup> Groups(Net& model) {
  std::vector<torch::Tensor> matrices, biases;
  for (const torch::Tensor& parameter : model->parameters()) {
    (parameter.dim() >= 2 ? matrices : biases).push_back(parameter);
  }
  using torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<AdamWOptions>(1e-3));
  groups.emplace_back(biases, std::make_unique<AdamWOptions>(AdamWOptions(1e-3).weight_decay(0)));
  return groups;
}

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "fine_tune_loop.pt";
  torch::manual_seed(1);
  Net model;
  gemini::Session session({.device_memory = "768KiB"});
  gemini::AdamW optimizer(session, *model, Groups(model), torch::optim::AdamWOptions(1e-3));

  const double first = Evaluate(model);
  Train(model, optimizer, 20);
  const double saved = Evaluate(model);
  {
    const gemini::PlainMemory plain(optimizer);
    torch::save(model, file);
    torch::save(optimizer, file + ".optimizer");
  }
  Train(model, optimizer, 5);
  {
    const gemini::PlainMemory plain(optimizer);
    torch::load(model, file);
    torch::load(optimizer, file + ".optimizer");
  }
  const double loaded = Evaluate(model);
  Train(model, optimizer, 10);
  std::printf("loss %.4f at first, %.4f when saved, %.4f when loaded, %.4f at the end\n", first,
              saved, loaded, Evaluate(model));
  return saved == loaded && saved < first ? 0 : 1;
}
