// SPDX-License-Identifier: Apache-2.0
// A small model, its data and its loop, for tests of the front door: the same for LibTorch's own
// optimizers and for those of a session.
#pragma once
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/sin.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "client/front/gemini.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/serialize.h"
#include "torch/utils.h"

namespace gemini {

// 76 KiB of parameters, in layers, with an integer buffer.
struct FrontNetImpl : torch::nn::Module {
  FrontNetImpl() {
    first = register_module("first", torch::nn::Linear(16, 128));
    norm = register_module("norm", torch::nn::BatchNorm1d(128));
    middle = register_module("middle", torch::nn::Linear(128, 128));
    last = register_module("last", torch::nn::Linear(128, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(middle(torch::relu(norm(first(x))))));
  }
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(FrontNet);

inline FrontNet MakeNet(uint64_t seed = 3) {
  torch::manual_seed(seed);
  return FrontNet();
}

// The batch of a step, by its number.
inline std::pair<torch::Tensor, torch::Tensor> BatchOf(int step) {
  torch::manual_seed(static_cast<uint64_t>(1'000 + step));
  const torch::Tensor x = torch::rand({8, 16}) - 0.5;
  return {x, torch::sin(3 * x.slice(1, 0, 4))};
}

inline float TrainStep(FrontNet& net, torch::optim::Optimizer& optimizer, int step) {
  auto [x, y] = BatchOf(step);
  const auto type = net->first->weight.scalar_type();
  optimizer.zero_grad();
  const torch::Tensor loss = torch::mse_loss(net->forward(x.to(type)), y.to(type));
  loss.backward();
  optimizer.step();
  return loss.item<float>();
}

inline std::vector<float> Train(FrontNet& net, torch::optim::Optimizer& optimizer, int begin,
                                int end, const std::function<void()>& after_step = nullptr) {
  std::vector<float> losses;
  for (int step = begin; step < end; ++step) {
    losses.push_back(TrainStep(net, optimizer, step));
    if (after_step != nullptr) after_step();
  }
  return losses;
}

// Two groups as loops make them: matrices, and what has one dimension.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> TwoGroups(FrontNet& net, const Options& matrices,
                                                         const Options& others) {
  std::vector<torch::Tensor> of_two, of_one;
  for (const torch::Tensor& parameter : net->parameters()) {
    (parameter.dim() >= 2 ? of_two : of_one).push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(of_two, std::make_unique<Options>(matrices));
  groups.emplace_back(of_one, std::make_unique<Options>(others));
  return groups;
}

// All values of the module, in their bits. Within a PlainMemory, for a managed one.
inline std::string BitsOf(const torch::nn::Module& module) {
  std::string bits;
  const auto add = [&](const torch::Tensor& tensor) {
    bits.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  for (const auto& parameter : module.parameters()) add(parameter);
  for (const auto& buffer : module.buffers()) add(buffer);
  return bits;
}
inline std::string BitsOf(torch::nn::Module& module, Optimizer& optimizer) {
  const PlainMemory plain(optimizer);
  return BitsOf(module);
}

// The text that `action` throws. Fails unless all of it takes at most 100 ms.
inline std::string ThrownBy(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  std::string text;
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    text = error.what();
  }
  const auto duration = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(duration, std::chrono::milliseconds(100)) << text;
  return text;
}

// A folder of its own, gone at the end.
class FrontTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              absl::StrCat("gemini_front_", ::getpid(), "_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string File(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
  // DEVICE holds the model in part. Without plans, as a server would measure the machine for each.
  const SessionOptions options_ = {
      .device_memory = "704KiB", .host_memory = "16MiB", .chunk_size = "64KiB", .policy = "online"};
};

}  // namespace gemini
