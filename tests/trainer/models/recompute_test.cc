// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/recompute.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

// A block with dropout, that counts its runs and can fail at one of them.
class TestBlock : public Block {
 public:
  explicit TestBlock(double dropout) : dropout_(dropout) {
    weight = register_parameter("weight", torch::randn({16, 16}));
    bias = register_parameter("bias", torch::randn({16}));
  }
  torch::Tensor Forward(const torch::Tensor& hidden, const BatchContext& /*context*/) override {
    ++runs;
    if (runs == fail_at_run) throw std::runtime_error("the block failed");
    graph_runs += torch::GradMode::is_enabled() ? 1 : 0;
    last_run_was_training = is_training();
    const torch::Tensor fed = torch::addmm(bias, hidden, weight).tanh();
    return hidden + torch::dropout(fed, dropout_, is_training());
  }

  torch::Tensor weight;
  torch::Tensor bias;
  int runs = 0;
  int graph_runs = 0;
  int fail_at_run = 0;
  bool last_run_was_training = false;

 private:
  const double dropout_;
};

struct Gradients {
  torch::Tensor loss;
  std::vector<torch::Tensor> values;
  torch::Tensor next_random;  // Shows where the generator stands afterwards.
};

// Three blocks with dropout, two passes whose gradients accumulate.
Gradients Train(bool recompute) {
  torch::manual_seed(11);
  std::vector<std::shared_ptr<TestBlock>> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(std::make_shared<TestBlock>(0.5));
  torch::Tensor input = torch::randn({8, 16}).requires_grad_();
  Gradients gradients;
  for (int pass = 0; pass < 2; ++pass) {
    torch::Tensor hidden = input * 2;
    for (const auto& block : blocks) {
      hidden = recompute ? ForwardRecomputed(block, hidden, {}) : block->Forward(hidden, {});
    }
    gradients.loss = hidden.square().sum();
    gradients.loss.backward();
  }
  gradients.values.push_back(input.grad());
  for (const auto& block : blocks) {
    gradients.values.push_back(block->weight.grad());
    gradients.values.push_back(block->bias.grad());
  }
  gradients.next_random = torch::rand({4});
  return gradients;
}

TEST(RecomputeTest, GradientsAreBitEqualWithDropout) {
  const Gradients plain = Train(/*recompute=*/false);
  const Gradients recomputed = Train(/*recompute=*/true);
  EXPECT_TRUE(torch::equal(plain.loss, recomputed.loss));
  ASSERT_EQ(plain.values.size(), 7u);
  for (size_t i = 0; i < plain.values.size(); ++i) {
    ASSERT_TRUE(recomputed.values[i].defined()) << i;
    EXPECT_TRUE(torch::equal(plain.values[i], recomputed.values[i])) << i;
  }
  // Recomputation draws nothing of its own.
  EXPECT_TRUE(torch::equal(plain.next_random, recomputed.next_random));
}

TEST(RecomputeTest, TheBlockRunsTwiceAndOnlyTheSecondTimeWithAGraph) {
  const auto block = std::make_shared<TestBlock>(0.0);
  const torch::Tensor output = ForwardRecomputed(block, torch::randn({4, 16}).requires_grad_(), {});
  EXPECT_EQ(block->runs, 1);
  EXPECT_EQ(block->graph_runs, 0);
  EXPECT_TRUE(output.requires_grad());
  output.sum().backward();
  EXPECT_EQ(block->runs, 2);
  EXPECT_EQ(block->graph_runs, 1);
}

TEST(RecomputeTest, ParametersGetGradientsBehindAnInputThatRequiresNone) {
  const auto block = std::make_shared<TestBlock>(0.0);
  const torch::Tensor input = torch::randn({4, 16});
  const torch::Tensor output = ForwardRecomputed(block, input, {});
  ASSERT_TRUE(output.requires_grad());
  output.sum().backward();
  const torch::Tensor recomputed = block->weight.grad().clone();
  EXPECT_FALSE(input.grad().defined());
  block->weight.mutable_grad().reset();
  block->Forward(input, {}).sum().backward();
  EXPECT_TRUE(torch::equal(recomputed, block->weight.grad()));
}

TEST(RecomputeTest, FrozenParametersStayWithoutGradient) {
  const auto block = std::make_shared<TestBlock>(0.0);
  block->weight.set_requires_grad(false);
  const torch::Tensor input = torch::randn({4, 16}).requires_grad_();
  ForwardRecomputed(block, input, {}).sum().backward();
  EXPECT_FALSE(block->weight.grad().defined());
  EXPECT_TRUE(block->bias.grad().defined());
  EXPECT_TRUE(input.grad().defined());

  block->bias.set_requires_grad(false);
  block->bias.mutable_grad().reset();
  ForwardRecomputed(block, torch::randn({4, 16}), {})
      .sum()
      .backward();  // Nothing needs a gradient.
  EXPECT_FALSE(block->bias.grad().defined());
}

TEST(RecomputeTest, TheTrainingFlagIsThatOfTheForward) {
  const auto block = std::make_shared<TestBlock>(0.5);
  const torch::Tensor output = ForwardRecomputed(block, torch::randn({4, 16}).requires_grad_(), {});
  block->eval();
  output.sum().backward();
  EXPECT_TRUE(block->last_run_was_training);
  EXPECT_FALSE(block->is_training());
}

TEST(RecomputeTest, WithoutGradModeTheBlockJustRuns) {
  const auto block = std::make_shared<TestBlock>(0.0);
  const torch::Tensor input = torch::randn({4, 16}).requires_grad_();
  const torch::NoGradGuard no_grad;
  const torch::Tensor output = ForwardRecomputed(block, input, {});
  EXPECT_FALSE(output.requires_grad());
  EXPECT_EQ(block->runs, 1);
}

TEST(RecomputeTest, AnExceptionOfTheForwardPassesThrough) {
  const auto block = std::make_shared<TestBlock>(0.0);
  block->fail_at_run = 1;
  EXPECT_THROW(ForwardRecomputed(block, torch::randn({4, 16}), {}), std::runtime_error);
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(RecomputeTest, AnExceptionOfTheBackwardPassesThroughAndPutsAllBack) {
  const auto block = std::make_shared<TestBlock>(0.5);
  const torch::Tensor output = ForwardRecomputed(block, torch::randn({4, 16}).requires_grad_(), {});
  block->eval();
  block->fail_at_run = 2;
  torch::manual_seed(5);
  const torch::Tensor expected = torch::rand({4});
  torch::manual_seed(5);
  EXPECT_THROW(output.sum().backward(), std::runtime_error);
  EXPECT_FALSE(block->is_training());
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(RecomputeTest, AnInputChangedAfterTheForwardIsRefusedByAutograd) {
  const auto block = std::make_shared<TestBlock>(0.0);
  torch::Tensor input = torch::randn({4, 16});
  const torch::Tensor output = ForwardRecomputed(block, input, {});
  input.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

class IdentityBlock : public Block {
 public:
  torch::Tensor Forward(const torch::Tensor& hidden, const BatchContext& /*context*/) override {
    return hidden;
  }
};

TEST(RecomputeTest, ABlockThatReturnsItsInputWorks) {
  const torch::Tensor input = torch::ones({4}).requires_grad_();
  ForwardRecomputed(std::make_shared<IdentityBlock>(), input * 3, {}).sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), torch::full({4}, 3.0f)));
}

TEST(RecomputeTest, TheGraphKeepsTheBlockAndLetsItGo) {
  auto block = std::make_shared<TestBlock>(0.0);
  const std::weak_ptr<TestBlock> watched = block;
  const torch::Tensor weight = block->weight;
  torch::Tensor output =
      ForwardRecomputed(std::exchange(block, nullptr), torch::randn({4, 16}), {});
  EXPECT_FALSE(watched.expired());
  output.sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  output = torch::Tensor();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace gemini::trainer
