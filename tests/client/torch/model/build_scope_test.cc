// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/build_scope.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/types.h"

namespace gemini::client::hooks {
namespace {

TEST(BuildScopeTest, FactoriesWithoutADeviceMakeMetaTensors) {
  const BuildScope scope;
  EXPECT_TRUE(torch::empty({3}).is_meta());
  EXPECT_TRUE(torch::zeros({3}).is_meta());
  EXPECT_TRUE(torch::randn({3}).is_meta());
  EXPECT_TRUE(torch::full({3}, 2.5).is_meta());
  EXPECT_TRUE(torch::arange(0.0, 1.0, 0.1).is_meta());
  EXPECT_TRUE(torch::empty({3}, torch::kDouble).is_meta());
}

TEST(BuildScopeTest, ExplicitDevicesAndIntegersStayAsTheyAre) {
  const at::Tensor real = torch::ones({2});
  const BuildScope scope;
  EXPECT_TRUE(torch::empty({3}, torch::kCPU).is_cpu());
  EXPECT_TRUE(torch::zeros({3}, torch::kLong).is_cpu());
  EXPECT_TRUE(torch::empty_like(real).is_cpu());
  EXPECT_EQ(real.sum().item<float>(), 2);
}

TEST(BuildScopeTest, FactoriesThatTakeTheirTypeFromIntegersStayAsTheyAre) {
  const BuildScope scope;
  EXPECT_TRUE(torch::arange(4).is_cpu());
  EXPECT_TRUE(torch::arange(1, 9, 2).is_cpu());
  EXPECT_TRUE(torch::full({3}, 1).is_cpu());
  EXPECT_TRUE(torch::full({3}, true).is_cpu());
  EXPECT_EQ(torch::arange(4).sum().item<int64_t>(), 6);
  EXPECT_TRUE(torch::arange(0, 4.0, 1).is_meta());
  EXPECT_TRUE(torch::arange(4, torch::kFloat).is_meta());
  EXPECT_TRUE(torch::linspace(0, 1, 5).is_meta());  // Floating whatever its numbers are.
}

TEST(BuildScopeTest, ModulesOfTorchAreBuiltWithoutMemory) {
  const BuildScope scope;
  const torch::nn::Linear linear(1 << 20, 1 << 14);  // 64 GiB if it were real.
  EXPECT_TRUE(linear->weight.is_meta());
  EXPECT_TRUE(linear->weight.requires_grad());
  const torch::nn::Embedding embedding(1 << 24, 1 << 10);
  EXPECT_TRUE(embedding->weight.is_meta());
  const torch::nn::BatchNorm2d norm(8);
  EXPECT_TRUE(norm->running_mean.is_meta());
  EXPECT_TRUE(norm->num_batches_tracked.is_cpu());
}

TEST(BuildScopeTest, TheScopeEndsWithItsBlockAndIsTheThreadsOwn) {
  {
    const BuildScope outer;
    { const BuildScope inner; }
    EXPECT_TRUE(torch::empty({3}).is_meta());
    bool other_thread_is_meta = true;
    std::thread([&] { other_thread_is_meta = torch::empty({3}).is_meta(); }).join();
    EXPECT_FALSE(other_thread_is_meta);
  }
  EXPECT_TRUE(torch::empty({3}).is_cpu());
}

}  // namespace
}  // namespace gemini::client::hooks
