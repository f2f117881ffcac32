// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/experts.h"

#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kWidth = 6;
constexpr int64_t kRows = 9;

ModelSpec SpecOf(const ExpertsSpec& experts) {
  ModelSpec spec = {.width = kWidth};
  spec.experts = experts;
  spec.feed_forward = {.activation = Activation::kSilu, .gated = true, .bias = false};
  spec.layers.block.experts = {.part = "mlp",
                               .router = "gate",
                               .experts = "experts",
                               .expert = {.gate = "g", .in = "i", .out = "o"},
                               .shared = "shared",
                               .shared_gate = "shared_gate"};
  return spec;
}

class ExpertsTest : public ::testing::Test {
 protected:
  void Make(const ExpertsSpec& spec) {
    torch::manual_seed(1);
    PlainLayers layers(torch::kFloat32);
    experts_ = std::make_unique<Experts>(SpecOf(spec), layers);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : experts_->parameters()) parameter.normal_();
    rows_ = torch::randn({kRows, kWidth});
  }
  Tensor Weight(const std::string& name) const {
    return experts_->named_parameters()[name + ".weight"];
  }
  Tensor Forward() {
    Tensor router_sums;
    Tensor out = experts_->Forward(rows_, /*routing=*/{}, router_sums);
    EXPECT_FALSE(router_sums.defined());
    return out;
  }
  // What the expert at `name` returns for one row.
  Tensor Run(const std::string& name, const Tensor& row) const {
    const Tensor gate = torch::silu(Weight(name + ".g").mv(row));
    return Weight(name + ".o").mv(gate * Weight(name + ".i").mv(row));
  }

  std::unique_ptr<Experts> experts_;
  Tensor rows_;
};

TEST_F(ExpertsTest, EachRowIsTheWeighedSumOfItsExperts) {
  for (const bool normalises : {false, true}) {
    for (const int64_t shared_width : {0, 5}) {
      Make({.count = 5,
            .chosen = 2,
            .width = 4,
            .normalises = normalises,
            .shared_width = shared_width});
      const Tensor out = Forward();
      ASSERT_EQ(out.sizes(), rows_.sizes());
      for (int64_t i = 0; i < kRows; ++i) {
        const Tensor row = rows_[i];
        const Tensor probabilities = torch::softmax(Weight("gate").mv(row), 0);
        const Tensor order = probabilities.argsort(0, /*descending=*/true);
        Tensor expected = torch::zeros({kWidth});
        Tensor sum = torch::zeros({});
        for (int64_t k = 0; k < 2; ++k) {
          const auto expert = order[k].item<int64_t>();
          expected = expected + probabilities[expert] * Run(absl::StrCat("experts.", expert), row);
          sum = sum + probabilities[expert];
        }
        if (normalises) expected = expected / sum;
        if (shared_width > 0) {
          expected = expected + torch::sigmoid(Weight("shared_gate").mv(row)) * Run("shared", row);
        }
        EXPECT_TRUE(torch::allclose(out[i], expected, 1e-5, 1e-5)) << i;
      }
    }
  }
}

// Of nine rows, each with one expert, most of 30 have none.
TEST_F(ExpertsTest, OneWithoutRowsHasAGradientOfZero) {
  Make({.count = 30, .chosen = 1, .width = 4, .normalises = false});
  Forward().square().sum().backward();
  int64_t unused = 0;
  for (const auto& parameter : experts_->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    unused += parameter.value().grad().abs().max().item<double>() == 0 ? 1 : 0;
  }
  EXPECT_GE(unused, 3 * (30 - kRows));
  EXPECT_LT(unused, 3 * 30);
}

TEST_F(ExpertsTest, TheRouterAddsItsChoicesAndProbabilitiesToTheSums) {
  Make({.count = 5, .chosen = 2, .width = 4, .router_loss_coefficient = 0.1});
  const Tensor probabilities = torch::softmax(rows_.mm(Weight("gate").t()), 1);
  const Tensor best = std::get<1>(probabilities.topk(2, 1));
  Tensor counts = torch::zeros({5});
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t k = 0; k < 2; ++k) counts[best[i][k].item<int64_t>()] += 1;
  }
  const Tensor once = torch::stack({counts, probabilities.sum(0)});
  Tensor sums;
  experts_->Forward(rows_, /*routing=*/{}, sums);
  EXPECT_TRUE(torch::allclose(sums, once));
  experts_->Forward(rows_, /*routing=*/{}, sums);
  EXPECT_TRUE(torch::allclose(sums, 2 * once));
}

TEST(RouterLossTest, IsTheProductOfTheMeansOverAllBlocks) {
  const ExpertsSpec spec = {.count = 4, .chosen = 2};
  // Of six tokens in all.
  const Tensor alike = torch::tensor({{3.0, 3.0, 3.0, 3.0}, {1.5, 1.5, 1.5, 1.5}}, torch::kFloat32);
  EXPECT_FLOAT_EQ(RouterLoss(alike, spec).item<float>(), 2);
  const Tensor sums =
      torch::tensor({{6.0, 6.0, 0.0, 0.0}, {3.0, 1.5, 1.2, 0.3}}, torch::kFloat32).requires_grad_();
  const Tensor loss = RouterLoss(sums, spec);
  EXPECT_FLOAT_EQ(loss.item<float>(), 4 * (1 * 0.5f + 1 * 0.25f));
  loss.backward();
  const Tensor expected =
      torch::tensor({{0.0, 0.0, 0.0, 0.0}, {4 / 6.0, 4 / 6.0, 0.0, 0.0}}, torch::kFloat32);
  EXPECT_TRUE(torch::allclose(sums.grad(), expected));
}

}  // namespace
}  // namespace gemini::trainer
