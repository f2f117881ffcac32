// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/recompute.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

// A block that counts its runs and can fail at one of them. It may add to the router sums what it
// adds to the hidden tensor.
class TestBlock : public Block {
 public:
  explicit TestBlock(bool routes = false) : routes_(routes) {
    weight = register_parameter("weight", torch::randn({16, 16}));
    bias = register_parameter("bias", torch::randn({16}));
  }
  Stream Forward(const Stream& stream, const BatchContext& /*context*/) override {
    ++runs;
    if (runs == fail_at_run) throw std::runtime_error("the block failed");
    graph_runs += torch::GradMode::is_enabled() ? 1 : 0;
    const torch::Tensor fed = torch::addmm(bias, stream.hidden, weight).tanh();
    Stream out = {.hidden = stream.hidden + fed, .router_sums = stream.router_sums};
    if (stream.pair.defined()) {
      out.pair = stream.pair + fed.t().matmul(out.hidden) * 0.1;
      out.hidden = out.hidden + fed.matmul(stream.pair) * 0.1;
    }
    if (!routes_) return out;
    const torch::Tensor sums = torch::stack({torch::ones({16}), fed.softmax(1).sum(0)});
    out.router_sums = out.router_sums.defined() ? out.router_sums + sums : sums;
    return out;
  }

  torch::Tensor weight;
  torch::Tensor bias;
  int runs = 0;
  int graph_runs = 0;
  int fail_at_run = 0;

 private:
  const bool routes_;
};

// Returns what follows for a hidden tensor alone.
torch::Tensor Recomputed(const std::shared_ptr<Block>& block, const torch::Tensor& hidden) {
  return ForwardRecomputed(block, {.hidden = hidden}, {}).hidden;
}

struct Gradients {
  torch::Tensor loss;
  std::vector<torch::Tensor> values;
};

// A block for each of `routes`; two passes whose gradients accumulate.
Gradients Train(bool recompute, const std::vector<bool>& routes, bool has_pair) {
  torch::manual_seed(11);
  std::vector<std::shared_ptr<TestBlock>> blocks;
  for (const bool one : routes) blocks.push_back(std::make_shared<TestBlock>(one));
  torch::Tensor input = torch::randn({8, 16}).requires_grad_();
  torch::Tensor pair = torch::randn({16, 16}).requires_grad_();
  Gradients gradients;
  for (int pass = 0; pass < 2; ++pass) {
    Stream stream = {.hidden = input * 2};
    if (has_pair) stream.pair = pair * 3;
    for (const auto& block : blocks) {
      stream = recompute ? ForwardRecomputed(block, stream, {}) : block->Forward(stream, {});
    }
    gradients.loss = stream.hidden.square().sum();
    if (has_pair) gradients.loss = gradients.loss + 5 * stream.pair.square().sum();
    if (stream.router_sums.defined()) {
      gradients.loss = gradients.loss + 7 * (stream.router_sums[0] * stream.router_sums[1]).sum();
    }
    gradients.loss.backward();
  }
  gradients.values.push_back(input.grad());
  if (has_pair) gradients.values.push_back(pair.grad());
  for (const auto& block : blocks) {
    gradients.values.push_back(block->weight.grad());
    gradients.values.push_back(block->bias.grad());
  }
  return gradients;
}

void ExpectBitEqual(const std::vector<bool>& routes, bool has_pair = false) {
  const Gradients plain = Train(/*recompute=*/false, routes, has_pair);
  const Gradients recomputed = Train(/*recompute=*/true, routes, has_pair);
  EXPECT_TRUE(torch::equal(plain.loss, recomputed.loss));
  ASSERT_EQ(plain.values.size(), 1 + has_pair + 2 * routes.size());
  for (size_t i = 0; i < plain.values.size(); ++i) {
    ASSERT_TRUE(recomputed.values[i].defined()) << i;
    EXPECT_TRUE(torch::equal(plain.values[i], recomputed.values[i])) << i;
  }
}

TEST(RecomputeTest, GradientsAreBitEqual) { ExpectBitEqual({false, false, false}); }

// Between those that add to the router sums there are blocks that do not.
TEST(RecomputeTest, GradientsThroughTheRouterSumsAreBitEqual) {
  ExpectBitEqual({true, true});
  ExpectBitEqual({false, true, false, true, false});
}

TEST(RecomputeTest, GradientsThroughAPairAreBitEqual) {
  ExpectBitEqual({false, false, false}, /*has_pair=*/true);
  ExpectBitEqual({false, true, false}, /*has_pair=*/true);
}

TEST(RecomputeTest, TheBlockRunsTwiceAndOnlyTheSecondTimeWithAGraph) {
  const auto block = std::make_shared<TestBlock>();
  const torch::Tensor output = Recomputed(block, torch::randn({4, 16}).requires_grad_());
  EXPECT_EQ(block->runs, 1);
  EXPECT_EQ(block->graph_runs, 0);
  EXPECT_TRUE(output.requires_grad());
  output.sum().backward();
  EXPECT_EQ(block->runs, 2);
  EXPECT_EQ(block->graph_runs, 1);
}

TEST(RecomputeTest, ParametersGetGradientsBehindAnInputThatRequiresNone) {
  const auto block = std::make_shared<TestBlock>();
  const torch::Tensor input = torch::randn({4, 16});
  const torch::Tensor output = Recomputed(block, input);
  ASSERT_TRUE(output.requires_grad());
  output.sum().backward();
  const torch::Tensor recomputed = block->weight.grad().clone();
  EXPECT_FALSE(input.grad().defined());
  block->weight.mutable_grad().reset();
  block->Forward({.hidden = input}, {}).hidden.sum().backward();
  EXPECT_TRUE(torch::equal(recomputed, block->weight.grad()));
}

TEST(RecomputeTest, FrozenParametersStayWithoutGradient) {
  const auto block = std::make_shared<TestBlock>();
  block->weight.set_requires_grad(false);
  const torch::Tensor input = torch::randn({4, 16}).requires_grad_();
  Recomputed(block, input).sum().backward();
  EXPECT_FALSE(block->weight.grad().defined());
  EXPECT_TRUE(block->bias.grad().defined());
  EXPECT_TRUE(input.grad().defined());

  block->bias.set_requires_grad(false);
  block->bias.mutable_grad().reset();
  Recomputed(block, torch::randn({4, 16})).sum().backward();  // Nothing needs a gradient.
  EXPECT_FALSE(block->bias.grad().defined());
}

TEST(RecomputeTest, WithoutGradModeTheBlockJustRuns) {
  const auto block = std::make_shared<TestBlock>();
  const torch::Tensor input = torch::randn({4, 16}).requires_grad_();
  const torch::NoGradGuard no_grad;
  const torch::Tensor output = Recomputed(block, input);
  EXPECT_FALSE(output.requires_grad());
  EXPECT_EQ(block->runs, 1);
}

TEST(RecomputeTest, AnExceptionOfTheForwardPassesThrough) {
  const auto block = std::make_shared<TestBlock>();
  block->fail_at_run = 1;
  EXPECT_THROW(Recomputed(block, torch::randn({4, 16})), std::runtime_error);
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(RecomputeTest, AnExceptionOfTheBackwardPassesThrough) {
  const auto block = std::make_shared<TestBlock>();
  const torch::Tensor output = Recomputed(block, torch::randn({4, 16}).requires_grad_());
  block->fail_at_run = 2;
  EXPECT_THROW(output.sum().backward(), std::runtime_error);
}

TEST(RecomputeTest, AnInputChangedAfterTheForwardIsRefusedByAutograd) {
  const auto block = std::make_shared<TestBlock>();
  torch::Tensor input = torch::randn({4, 16});
  const torch::Tensor output = Recomputed(block, input);
  input.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

class IdentityBlock : public Block {
 public:
  Stream Forward(const Stream& stream, const BatchContext& /*context*/) override { return stream; }
};

TEST(RecomputeTest, ABlockThatReturnsItsInputWorks) {
  const torch::Tensor input = torch::ones({4}).requires_grad_();
  Recomputed(std::make_shared<IdentityBlock>(), input * 3).sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), torch::full({4}, 3.0f)));
}

TEST(RecomputeTest, TheGraphKeepsTheBlockAndLetsItGo) {
  auto block = std::make_shared<TestBlock>();
  const std::weak_ptr<TestBlock> watched = block;
  const torch::Tensor weight = block->weight;
  torch::Tensor output = Recomputed(std::exchange(block, nullptr), torch::randn({4, 16}));
  EXPECT_FALSE(watched.expired());
  output.sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  output = torch::Tensor();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace gemini::trainer
