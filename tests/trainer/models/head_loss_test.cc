// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/head_loss.h"

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

#include "ATen/record_function.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 1000, kWidth = 64, kTokens = 75;
constexpr int64_t kRowsOfPiece = 96, kTokensOfPiece = 16;
constexpr double kGradient = 1.0 / 70;  // Of the sum.

double Largest(const Tensor& x) { return x.abs().max().item<double>(); }
double RelativeError(const Tensor& ours, const Tensor& expected) {
  return Largest(ours.to(torch::kFloat64) - expected) / Largest(expected);
}

struct Gradients {
  Tensor sum;
  Tensor hidden;
  Tensor table;
  Tensor bias;  // One where there is none.
};

struct Case {
  const char* name;
  double logit_scale = 1;
  double soft_cap = 0;
  bool has_bias = false;
};
constexpr Case kCases[] = {
    {"plain"},          {"scaled", 0.3},        {"capped", 1, 2.5},
    {"both", 0.7, 2.5}, {"biased", 1, 0, true}, {"all", 0.7, 2.5, true},
};

class HeadLossTest : public ::testing::TestWithParam<std::tuple<Case, torch::ScalarType>> {
 protected:
  HeadLossTest() {
    torch::manual_seed(1);
    const auto type = std::get<1>(GetParam());
    hidden_ = torch::randn({kTokens, kWidth}).to(type);
    table_ = (0.3 * torch::randn({kRows, kWidth})).to(type);
    if (std::get<0>(GetParam()).has_bias) bias_ = torch::randn({kRows}).to(type);
    labels_ = torch::randint(0, kRows, {kTokens}, torch::kInt64);
    // The first and the last row, rows at the ends of pieces, and tokens that count for nothing.
    labels_.slice(0, 0, 6) = torch::tensor({0, 999, 95, 96, 191, 192});
    for (const int64_t token : {7, 15, 16, 74}) labels_[token] = -1;
    labels_.slice(0, 48, 64) = -1;  // A whole piece of tokens.
  }

  static HeadOptions Options(int64_t pieces_of_block) {
    const Case& one = std::get<0>(GetParam());
    return {.cut = {.rows = kRows,
                    .width = kWidth,
                    .rows_of_piece = kRowsOfPiece,
                    .pieces_of_block = pieces_of_block,
                    .tokens_of_piece = kTokensOfPiece},
            .logit_scale = one.logit_scale,
            .soft_cap = one.soft_cap};
  }

  std::vector<Tensor> Blocks(const VocabularyCut& cut) const {
    std::vector<Tensor> blocks;
    for (int64_t i = 0; i < cut.num_blocks(); ++i) {
      blocks.push_back(
          table_.slice(0, cut.first_row(i), cut.first_row(i + 1)).clone().set_requires_grad(true));
    }
    return blocks;
  }

  Gradients Run(int64_t pieces_of_block, double foretold = kGradient) const {
    return Run(Options(pieces_of_block), foretold);
  }
  Gradients Run(const HeadOptions& options, double foretold = kGradient) const {
    const std::vector<Tensor> blocks = Blocks(options.cut);
    const Tensor hidden = hidden_.clone().set_requires_grad(true);
    Tensor bias;
    if (bias_.defined()) bias = bias_.clone().set_requires_grad(true);
    const Tensor sum = HeadLoss(hidden, labels_, blocks, options, foretold, bias);
    sum.backward(torch::full({}, kGradient));
    std::vector<Tensor> gradients;
    for (const Tensor& block : blocks) gradients.push_back(block.grad());
    return {sum.detach(), hidden.grad(), torch::cat(gradients),
            bias.defined() ? bias.grad() : torch::ones({1})};
  }

  // Whole logits of fp64.
  Tensor LogitsOf(const Tensor& hidden, const Tensor& table, const Tensor& bias) const {
    const HeadOptions options = Options(1);
    Tensor logits = hidden.matmul(table.t());
    if (bias.defined()) logits = logits + bias;
    logits = logits * options.logit_scale;
    if (options.soft_cap != 0) logits = (logits / options.soft_cap).tanh() * options.soft_cap;
    return logits;
  }

  // By whole logits, in fp64.
  Gradients Expected() const {
    const Tensor hidden = hidden_.to(torch::kFloat64).set_requires_grad(true);
    const Tensor table = table_.to(torch::kFloat64).set_requires_grad(true);
    Tensor bias;
    if (bias_.defined()) bias = bias_.to(torch::kFloat64).set_requires_grad(true);
    const Tensor sum =
        at::cross_entropy_loss(LogitsOf(hidden, table, bias), labels_, {}, at::Reduction::Sum, -1);
    sum.backward(torch::full({}, kGradient, torch::kFloat64));
    return {sum.detach(), hidden.grad(), table.grad(),
            bias.defined() ? bias.grad() : torch::ones({1})};
  }

  Tensor hidden_;
  Tensor table_;
  Tensor bias_;
  Tensor labels_;
};

// A rank has half of the width, and a table with rows behind the vocabulary's end. Another one's
// products are added.
TEST_P(HeadLossTest, OfPartsOfTheWidthItIsTheSame) {
  constexpr int64_t kHalf = kWidth / 2, kPadding = 8;
  const Gradients expected = Expected();
  const Tensor others = torch::linear(hidden_.narrow(1, kHalf, kHalf).contiguous(),
                                      table_.narrow(1, kHalf, kHalf).contiguous());
  int64_t tokens = 0;  // That were added to.
  HeadOptions options = Options(1);
  options.cut.rows_of_piece = kRows + kPadding;
  options.add = [&](const Tensor& products) {
    const Tensor of_others = others.narrow(0, tokens, products.size(0));
    tokens += products.size(0);
    return products.narrow(1, 0, kRows) + of_others;
  };
  options.gather = [&](const Tensor& derivatives) {
    return at::constant_pad_nd(derivatives, {0, kPadding});
  };
  const Tensor hidden = hidden_.narrow(1, 0, kHalf).clone().set_requires_grad(true);
  const Tensor table = table_.narrow(1, 0, kHalf).clone().set_requires_grad(true);
  // It is no leaf, as what is put together of the ranks' parts.
  const Tensor block = at::constant_pad_nd(table, {0, 0, 0, kPadding});
  if (bias_.defined()) {
    EXPECT_THROW(HeadLoss(hidden, labels_, {block}, options, kGradient, bias_), c10::Error);
    return;
  }
  const Tensor sum = HeadLoss(hidden, labels_, {block}, options, kGradient);
  sum.backward(torch::full({}, kGradient));
  EXPECT_EQ(tokens, kTokens);
  const bool in_fp32 = std::get<1>(GetParam()) == torch::kFloat32;
  EXPECT_LE(RelativeError(sum.detach(), expected.sum), in_fp32 ? 2e-7 : 1e-3);
  EXPECT_LE(RelativeError(hidden.grad(), expected.hidden.narrow(1, 0, kHalf)),
            in_fp32 ? 2e-6 : 4.0 / 256);
  EXPECT_LE(RelativeError(table.grad(), expected.table.narrow(1, 0, kHalf)),
            in_fp32 ? 2e-6 : 4.0 / 256);
}

TEST_P(HeadLossTest, IsThatOfWholeLogits) {
  const Gradients expected = Expected();
  // In 16 bits logits, their derivatives and the result are rounded, by up to 2^-8 each.
  const bool in_fp32 = std::get<1>(GetParam()) == torch::kFloat32;
  for (const int64_t pieces_of_block : {1, 100}) {
    const Gradients ours = Run(pieces_of_block);
    EXPECT_EQ(ours.sum.scalar_type(), torch::kFloat32);
    EXPECT_EQ(ours.hidden.scalar_type(), hidden_.scalar_type());
    const double loss = RelativeError(ours.sum, expected.sum);
    const double hidden = RelativeError(ours.hidden, expected.hidden);
    const double table = RelativeError(ours.table, expected.table);
    const double bias = RelativeError(ours.bias, expected.bias);
    std::printf("%s %s: loss %.1e, gradients %.1e, %.1e and %.1e\n", std::get<0>(GetParam()).name,
                c10::toString(std::get<1>(GetParam())), loss, hidden, table, bias);
    EXPECT_LE(loss, in_fp32 ? 2e-7 : 1e-3);
    EXPECT_LE(hidden, in_fp32 ? 2e-6 : 3.0 / 256);
    EXPECT_LE(table, in_fp32 ? 2e-6 : 3.0 / 256);
    EXPECT_LE(bias, in_fp32 ? 2e-6 : 3.0 / 256);
  }
}

TEST_P(HeadLossTest, BlocksChangeNoBit) {
  const Gradients whole = Run(100);
  for (const int64_t pieces_of_block : {1, 2, 3, 8}) {
    const Gradients cut = Run(pieces_of_block);
    EXPECT_TRUE(torch::equal(cut.sum, whole.sum));
    EXPECT_TRUE(torch::equal(cut.hidden, whole.hidden));
    EXPECT_TRUE(torch::equal(cut.table, whole.table));
    EXPECT_TRUE(torch::equal(cut.bias, whole.bias));
    const torch::NoGradGuard no_grad;
    const HeadOptions options = Options(pieces_of_block);
    EXPECT_TRUE(torch::equal(
        HeadLoss(hidden_, labels_, Blocks(options.cut), options, kGradient, bias_), whole.sum));
  }
}

TEST_P(HeadLossTest, AGpusOperatorsGiveTheSameBits) {
  HeadOptions options = Options(3);
  const Gradients of_cpu = Run(options);
  options.on_cpu = false;
  const Gradients of_gpu = Run(options);
  EXPECT_TRUE(torch::equal(of_gpu.sum, of_cpu.sum));
  EXPECT_TRUE(torch::equal(of_gpu.hidden, of_cpu.hidden));
  EXPECT_TRUE(torch::equal(of_gpu.table, of_cpu.table));
  EXPECT_TRUE(torch::equal(of_gpu.bias, of_cpu.bias));
}

TEST_P(HeadLossTest, AnotherGradientThanForetoldIsTaken) {
  const Gradients expected = Run(100);
  const double bound = std::get<1>(GetParam()) == torch::kFloat32 ? 4e-6 : 2e-2;
  for (const int64_t pieces_of_block : {3, 100}) {
    const Gradients other = Run(pieces_of_block, /*foretold=*/5);
    EXPECT_LE(RelativeError(other.hidden, expected.hidden.to(torch::kFloat64)), bound);
    EXPECT_LE(RelativeError(other.table, expected.table.to(torch::kFloat64)), bound);
    EXPECT_LE(RelativeError(other.bias, expected.bias.to(torch::kFloat64)), bound);
  }
}

TEST_P(HeadLossTest, LogitsAreThoseOfALinearLayer) {
  const Tensor expected = LogitsOf(hidden_.to(torch::kFloat64), table_.to(torch::kFloat64),
                                   bias_.defined() ? bias_.to(torch::kFloat64) : bias_);
  const double bound = std::get<1>(GetParam()) == torch::kFloat32 ? 2e-6 : 1e-2;
  for (const int64_t pieces_of_block : {2, 100}) {
    const HeadOptions options = Options(pieces_of_block);
    const Tensor logits = HeadLogits(hidden_, Blocks(options.cut), options, bias_);
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{kTokens, kRows}));
    EXPECT_LE(RelativeError(logits, expected), bound);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HeadLossTest,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(torch::kFloat32, torch::kBFloat16)),
                         [](const auto& at) {
                           return std::string(std::get<0>(at.param).name) +
                                  c10::toString(std::get<1>(at.param));
                         });

// The number of elements of the largest tensor that an operator returned.
int64_t& LargestOutput() {
  static int64_t largest = 0;
  return largest;
}

class HeadLossMemoryTest : public ::testing::Test {
 protected:
  HeadLossMemoryTest() {
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
              return nullptr;
            },
            [](const at::RecordFunction& function, at::ObserverContext*) {
              for (const c10::IValue& output : function.outputs()) {
                if (!output.isTensor() || !output.toTensor().defined()) continue;
                // Views of what is there already are not counted.
                const Tensor& tensor = output.toTensor();
                const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
                LargestOutput() = std::max(LargestOutput(), bytes / tensor.element_size());
              }
            })
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~HeadLossMemoryTest() override { at::removeCallback(handle_); }

  at::CallbackHandle handle_ = 0;
};

TEST_F(HeadLossMemoryTest, LogitsOfAllTokensNeverExist) {
  constexpr int64_t kManyTokens = 512, kNarrow = 8;
  HeadOptions options = {.cut = {.rows = kRows,
                                 .width = kNarrow,
                                 .rows_of_piece = kRowsOfPiece,
                                 .pieces_of_block = 2,
                                 .tokens_of_piece = kTokensOfPiece}};
  std::vector<Tensor> blocks;
  for (int64_t i = 0; i < options.cut.num_blocks(); ++i) {
    const int64_t rows = options.cut.first_row(i + 1) - options.cut.first_row(i);
    blocks.push_back(torch::randn({rows, kNarrow}, torch::requires_grad()));
  }
  const Tensor labels = torch::randint(0, kRows, {kManyTokens}, torch::kInt64);
  const Tensor hidden = torch::randn({kManyTokens, kNarrow}, torch::requires_grad());
  LargestOutput() = 0;
  HeadLoss(hidden, labels, blocks, options, 1).backward();
  // The hidden states and their sums are larger than a piece's logits.
  EXPECT_LE(LargestOutput(), kManyTokens * (options.cut.num_pieces() + kNarrow));

  options.cut.pieces_of_block = options.cut.num_pieces();
  const std::vector<Tensor> whole = {torch::randn({kRows, kNarrow}, torch::requires_grad())};
  LargestOutput() = 0;
  HeadLoss(hidden, labels, whole, options, 1).backward();
  EXPECT_LE(LargestOutput(), kRows * kNarrow);
}

class HeadLossGraphTest : public ::testing::Test {
 protected:
  HeadLossGraphTest() { torch::manual_seed(2); }
  static HeadOptions Options(int64_t pieces_of_block) {
    return {.cut = {.rows = 200,
                    .width = 16,
                    .rows_of_piece = 64,
                    .pieces_of_block = pieces_of_block,
                    .tokens_of_piece = 8}};
  }
  static std::vector<Tensor> Blocks(const HeadOptions& options) {
    std::vector<Tensor> blocks;
    for (int64_t i = 0; i < options.cut.num_blocks(); ++i) {
      blocks.push_back(torch::randn({options.cut.first_row(i + 1) - options.cut.first_row(i), 16},
                                    torch::requires_grad()));
    }
    return blocks;
  }
  const Tensor hidden_ = torch::randn({20, 16}, torch::requires_grad());
  const Tensor labels_ = torch::randint(0, 200, {20}, torch::kInt64);
  const Tensor bias_ = torch::randn({200}, torch::requires_grad());
};

TEST_F(HeadLossGraphTest, ATableThatIsComputedGetsItsGradientThroughTheGraph) {
  const HeadOptions options = Options(4);
  const std::vector<Tensor> blocks = Blocks(options);
  ASSERT_EQ(blocks.size(), 1);
  HeadLoss(hidden_, labels_, blocks, options, 1, bias_).backward();
  const Tensor expected = blocks[0].grad().clone();
  const Tensor expected_bias = bias_.grad().clone();
  blocks[0].mutable_grad().reset();
  bias_.mutable_grad().reset();
  const Tensor table = blocks[0] * 1;
  HeadLoss(hidden_, labels_, {table}, options, 1, bias_).backward();
  EXPECT_TRUE(torch::equal(blocks[0].grad(), expected));
  EXPECT_TRUE(torch::equal(bias_.grad(), expected_bias));
  // Of several blocks each would need its turn.
  std::vector<Tensor> several = Blocks(Options(1));
  several[1] = several[1] * 1;
  EXPECT_THROW(HeadLoss(hidden_, labels_, several, Options(1), 1), c10::Error);
}

TEST_F(HeadLossGraphTest, WhatIsFrozenGetsNoGradient) {
  for (const int64_t pieces_of_block : {1, 4}) {
    const HeadOptions options = Options(pieces_of_block);
    std::vector<Tensor> blocks = Blocks(options);
    blocks[0].set_requires_grad(false);
    hidden_.mutable_grad().reset();
    HeadLoss(hidden_, labels_, blocks, options, 1).backward();
    EXPECT_TRUE(hidden_.grad().defined());
    EXPECT_FALSE(blocks[0].grad().defined());
    if (blocks.size() > 1) {
      EXPECT_TRUE(blocks[1].grad().defined());
    }

    blocks = Blocks(options);
    HeadLoss(hidden_.detach(), labels_, blocks, options, 1).backward();
    EXPECT_TRUE(blocks.back().grad().defined());
    for (Tensor& block : blocks) block.set_requires_grad(false);
    EXPECT_FALSE(HeadLoss(hidden_.detach(), labels_, blocks, options, 1).requires_grad());
  }
}

TEST_F(HeadLossGraphTest, ABiasLearnsAloneAndIsSeenByItsHookAndAFrozenOneIsLeftAlone) {
  for (const int64_t pieces_of_block : {1, 4}) {
    const HeadOptions options = Options(pieces_of_block);
    std::vector<Tensor> blocks = Blocks(options);
    for (Tensor& block : blocks) block.set_requires_grad(false);
    const Tensor bias = bias_.detach().clone().set_requires_grad(true);
    int calls = 0;
    bias.register_hook([&calls](const Tensor&) { ++calls; });
    HeadLoss(hidden_.detach(), labels_, blocks, options, 1, bias).backward();
    EXPECT_EQ(calls, 1);
    // Each token gives the softmax less one at its label, whose sum is 0.
    EXPECT_NEAR(bias.grad().sum().item<double>(), 0, 1e-4);
    EXPECT_GT(Largest(bias.grad()), 0.1);

    const Tensor frozen = bias_.detach();
    HeadLoss(hidden_, labels_, Blocks(options), options, 1, frozen).backward();
    EXPECT_FALSE(frozen.grad().defined());
  }
}

TEST_F(HeadLossGraphTest, ABiasOfOtherRowsIsRefused) {
  const HeadOptions options = Options(4);
  const Tensor bias = bias_.slice(0, 0, 199);
  EXPECT_THROW(HeadLoss(hidden_, labels_, Blocks(options), options, 1, bias), c10::Error);
  EXPECT_THROW(HeadLogits(hidden_, Blocks(options), options, bias), c10::Error);
}

// A changed table would give gradients of another loss.
TEST_F(HeadLossGraphTest, AStaleGraphASecondBackwardAndASecondDerivativeAreRefused) {
  for (const int64_t pieces_of_block : {1, 4}) {
    const HeadOptions options = Options(pieces_of_block);
    std::vector<Tensor> blocks = Blocks(options);
    Tensor sum = HeadLoss(hidden_, labels_, blocks, options, 1);
    {
      const torch::NoGradGuard no_grad;
      blocks[0].add_(1);
    }
    EXPECT_THROW(sum.backward(), c10::Error);
    sum = HeadLoss(hidden_, labels_, blocks, options, 1);
    sum.backward({}, /*retain_graph=*/true);
    EXPECT_THROW(sum.backward(), c10::Error);
    EXPECT_THROW(HeadLoss(hidden_, labels_, blocks, options, 1).backward({}, true, true),
                 c10::Error);
    EXPECT_THROW(HeadLoss(hidden_, labels_, blocks, options, 0), c10::Error);
  }
}

}  // namespace
}  // namespace gemini::trainer
