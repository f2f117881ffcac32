// SPDX-License-Identifier: Apache-2.0
// An image classifier: the network of PyTorch's MNIST example, on images that are made here. It
// trains, evaluates, saves, goes on, loads what it saved and goes on from there.
#include <gemini/gemini.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace F = torch::nn::functional;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("dropout1", dropout1);
    register_module("dropout2", dropout2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    x = torch::flatten(dropout1(x), 1);
    x = dropout2(torch::relu(fc1(x)));
    return torch::log_softmax(fc2(x), 1);
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 32, 3)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(32, 64, 3)};
  torch::nn::Dropout dropout1{0.25}, dropout2{0.5};
  torch::nn::Linear fc1{9216, 128}, fc2{128, 10};
};
TORCH_MODULE(Net);

// Ten patterns, one a class, below noise.
struct Images {
  const torch::Tensor patterns = torch::randn({10, 1, 28, 28});
  std::pair<torch::Tensor, torch::Tensor> Batch() const {
    const torch::Tensor labels = torch::randint(10, {64}, torch::kLong);
    return {patterns.index_select(0, labels) + torch::randn({64, 1, 28, 28}), labels};
  }
};

void Train(Net& model, torch::optim::Optimizer& optimizer, const Images& images, int steps) {
  model->train();
  std::vector<double> seconds;
  for (int step = 0; step < steps; ++step) {
    const auto [x, labels] = images.Batch();
    const auto begin = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const torch::Tensor loss = F::nll_loss(model->forward(x), labels);
    loss.backward();
    optimizer.step();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("%d steps, %.1f ms each\n", steps, 1e3 * seconds[seconds.size() / 2]);
}

double Accuracy(Net& model, const Images& images) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_gradient;
  model->eval();
  double right = 0;
  for (int batch = 0; batch < 4; ++batch) {
    const auto [x, labels] = images.Batch();
    right += model->forward(x).argmax(1).eq(labels).to(torch::kFloat).mean().item<double>() / 4;
  }
  return right;
}

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "image_classifier.pt";
  const int steps = argc > 2 ? std::stoi(argv[2]) : 20;
  torch::manual_seed(1);
  Net model;
  gemini::Session session;
  gemini::AdamW optimizer(session, *model, torch::optim::AdamWOptions(1e-3));
  torch::optim::StepLR schedule(optimizer, 1, 0.7);
  const Images images;

  Train(model, optimizer, images, steps);
  schedule.step();
  const double saved = Accuracy(model, images);
  {
    const gemini::PlainMemory plain(optimizer);
    torch::save(model, file);
    torch::save(optimizer, file + ".optimizer");
  }
  Train(model, optimizer, images, steps / 2);
  {
    const gemini::PlainMemory plain(optimizer);
    torch::load(model, file);
    torch::load(optimizer, file + ".optimizer");
  }
  const double loaded = Accuracy(model, images);
  Train(model, optimizer, images, steps / 2);
  std::printf("accuracy %.3f when saved, %.3f when loaded, %.3f at the end\n", saved, loaded,
              Accuracy(model, images));
  return saved == loaded && saved > 0.5 ? 0 : 1;
}
