// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/distogram_head.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kBins = 7;

class DistogramHeadTest : public ::testing::Test {
 protected:
  DistogramHeadTest() {
    ModelSpec spec;
    spec.pair_trunk = {.pair_width = 5, .num_bins = kBins};
    spec.classifier = {.bias = true};
    spec.layers.classifier = "distogram_head";
    PlainLayers layers(torch::kFloat64);
    torch::manual_seed(1);
    head_ = std::make_unique<DistogramHead>(root_, spec, layers);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : root_.parameters()) parameter.normal_();
    pair_ = torch::randn({2, 4, 4, 5}, torch::kFloat64);
    bins_ = torch::randint(0, kBins, {2, 4, 4}, torch::kInt64);
    bins_[0][1][2] = bins_[1][3][3] = -1;
  }
  BatchLoss Loss() const { return head_->LossOf({.hidden = pair_}, {bins_, 30}, LossFactors()); }

  torch::nn::Module root_;
  std::unique_ptr<DistogramHead> head_;
  Tensor pair_, bins_;
};

TEST_F(DistogramHeadTest, LogitsAreOfBothOrdersOfAPair) {
  const Tensor weight = root_.named_parameters()["distogram_head.weight"];
  const Tensor bias = root_.named_parameters()["distogram_head.bias"];
  const Tensor logits = head_->Logits({.hidden = pair_});
  EXPECT_TRUE(torch::allclose(logits, logits.transpose(1, 2), 1e-12));
  const Tensor expected = weight.matmul(pair_[1][2][3] + pair_[1][3][2]) + bias;
  EXPECT_TRUE(torch::allclose(logits[1][2][3], expected, 1e-12));
}

TEST_F(DistogramHeadTest, TheLossIsTheSumOverKnownBins) {
  const Tensor each = torch::log_softmax(head_->Logits({.hidden = pair_}), -1);
  const Tensor chosen = each.gather(-1, bins_.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  const BatchLoss loss = Loss();
  EXPECT_EQ(loss.count, 30);
  EXPECT_TRUE(torch::allclose(loss.sum, -(chosen * bins_.ge(0)).sum(), 1e-12));
  EXPECT_FALSE(loss.hits.defined());
}

TEST_F(DistogramHeadTest, WithoutAGraphHitsAreCounted) {
  const torch::NoGradGuard no_grad;
  bins_ = head_->Logits({.hidden = pair_}).argmax(-1);
  bins_[0][0][1] = (bins_[0][0][1] + 1) % kBins;
  bins_[0][1][2] = -1;
  const BatchLoss loss = Loss();
  EXPECT_EQ(loss.hits[0].item<int64_t>(), 30);
  EXPECT_GE(loss.hits[1].item<int64_t>(), 30);
}

// What follows in backward computes with it as it lies.
TEST_F(DistogramHeadTest, TheGradientIsContiguousAndTheSameForBothOrders) {
  pair_.requires_grad_();
  Loss().sum.backward();
  EXPECT_TRUE(pair_.grad().is_contiguous());
  EXPECT_TRUE(torch::equal(pair_.grad(), pair_.grad().transpose(1, 2)));
  EXPECT_NE(pair_.grad().abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace gemini::trainer
