// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/plain_layers.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

Tensor InFp64(const Tensor& x) { return x.detach().to(torch::kFloat64); }

// Returns x by its root mean square over the last dimension.
Tensor ByRms(const Tensor& x, double epsilon) {
  return x / (x.square().mean(-1, true) + epsilon).sqrt();
}
// Returns x less its mean, by its standard deviation.
Tensor ByDeviation(const Tensor& x, double epsilon) { return ByRms(x - x.mean(-1, true), epsilon); }

// The parameters of a layer, set to values of their own.
std::vector<Tensor> SetParameters(Layer& layer, double mean, double deviation) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> parameters = layer.parameters();
  for (Tensor& parameter : parameters) parameter.normal_(mean, deviation);
  return parameters;
}

double LargestError(const Tensor& ours, const Tensor& expected) {
  return (InFp64(ours) - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

class PlainLayersTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(1); }
  PlainLayers layers_{torch::kFloat32};
  PlainLayers layers_of_16_bits_{torch::kBFloat16};
  const Tensor x_ = torch::randn({3, 5, 64});
};

TEST_F(PlainLayersTest, NormsAreThoseOfTheirSpec) {
  const auto rms = layers_.Norm({.kind = NormKind::kRms, .epsilon = 0.1}, 64);
  const std::vector<Tensor> weight = SetParameters(*rms, 1, 0.3);
  ASSERT_EQ(weight.size(), 1u);
  EXPECT_LE(LargestError(rms->Forward(x_), ByRms(InFp64(x_), 0.1) * weight[0]), 1e-6);

  const auto layer = layers_.Norm({.epsilon = 0.1}, 64);
  const std::vector<Tensor> both = SetParameters(*layer, 1, 0.3);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_LE(LargestError(layer->Forward(x_), ByDeviation(InFp64(x_), 0.1) * both[0] + both[1]),
            1e-6);

  const auto unbiased = layers_.Norm({.epsilon = 0.1, .bias = false}, 64);
  const std::vector<Tensor> one = SetParameters(*unbiased, 1, 0.3);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_LE(LargestError(unbiased->Forward(x_), ByDeviation(InFp64(x_), 0.1) * one[0]), 1e-6);

  EXPECT_TRUE(layers_.Norm({.affine = false}, 64)->parameters().empty());
}

// 1.0017 is 1 in bf16. One product is rounded to bf16 whatever the factor is, so the means of many
// are compared.
TEST_F(PlainLayersTest, OnePlusWeightKeepsTheLastBitsOfA16BitWeight) {
  const auto norm =
      layers_of_16_bits_.Norm({.kind = NormKind::kRms, .epsilon = 1e-6, .adds_one = true}, 4096);
  const Tensor weight = SetParameters(*norm, 0.0017, 0).front();
  const Tensor x = torch::randn({64, 4096}).to(torch::kBFloat16);
  const Tensor ours = norm->Forward(x);
  EXPECT_EQ(ours.scalar_type(), torch::kBFloat16);
  const Tensor expected = ByRms(InFp64(x), 1e-6) * (1 + InFp64(weight));
  const double ratio = (InFp64(ours).abs().mean() / expected.abs().mean()).item<double>();
  EXPECT_NEAR(ratio, 1, 3e-4);  // 0.9983 if the weight is lost.
}

TEST_F(PlainLayersTest, HeadsAreNormedByWeightsOfTheirOwn) {
  const Tensor heads = x_.view({3, 5, 4, 16});
  const auto layer = layers_.HeadNorm(
      {.head_size = 16, .head_norm = {{.epsilon = 0.1, .bias = false}}, .norms_heads_apart = true},
      4);
  const Tensor weight = SetParameters(*layer, 1, 0.3).front();
  ASSERT_EQ(weight.sizes(), (std::vector<int64_t>{4, 16}));
  EXPECT_LE(LargestError(layer->Forward(heads), ByDeviation(InFp64(heads), 0.1) * weight), 1e-6);
  const auto rms = layers_.HeadNorm({.head_size = 16,
                                     .head_norm = {{.kind = NormKind::kRms, .epsilon = 0.1}},
                                     .norms_heads_apart = true},
                                    4);
  const Tensor other = SetParameters(*rms, 1, 0.3).front();
  EXPECT_LE(LargestError(rms->Forward(heads), ByRms(InFp64(heads), 0.1) * other), 1e-6);
}

TEST_F(PlainLayersTest, MatricesLieAsTheFilesHaveThem) {
  const auto out_in = layers_.Linear({64, 10, true, MatrixLayout::kOutIn}, Role::kFeedIn);
  const std::vector<Tensor> first = SetParameters(*out_in, 0, 1);
  ASSERT_EQ(first[0].sizes(), (std::vector<int64_t>{10, 64}));
  EXPECT_LE(
      LargestError(out_in->Forward(x_), InFp64(x_).matmul(InFp64(first[0]).t()) + InFp64(first[1])),
      1e-6);
  const auto in_out = layers_.Linear({64, 10, true, MatrixLayout::kInOut}, Role::kFeedIn);
  const std::vector<Tensor> second = SetParameters(*in_out, 0, 1);
  ASSERT_EQ(second[0].sizes(), (std::vector<int64_t>{64, 10}));
  EXPECT_LE(
      LargestError(in_out->Forward(x_), InFp64(x_).matmul(InFp64(second[0])) + InFp64(second[1])),
      1e-6);
}

TEST_F(PlainLayersTest, ThePaddingRowGetsNoGradientFromALookUp) {
  const auto table = layers_.TokenEmbedding(4, 3, /*padding_token=*/2);
  const Tensor weight = SetParameters(*table, 0, 1).front();
  const Tensor out = table->Forward(torch::tensor({2, 1, 2}, torch::kInt64));
  EXPECT_TRUE(torch::equal(out[0], weight[2]));
  out.sum().backward();
  EXPECT_EQ(weight.grad()[2].abs().sum().item<double>(), 0);
  EXPECT_EQ(weight.grad()[1].sum().item<double>(), 3);
}

TEST_F(PlainLayersTest, AHeadHasABiasOfItsOwnAlsoWhereItsTableIsTied) {
  const std::shared_ptr<VocabularyTable> table = layers_.TokenEmbedding(10, 64, -1);
  const Tensor rows = SetParameters(*table, 0, 1).front();
  for (const bool tied : {true, false}) {
    const auto head = layers_.Head({.vocabulary = 10, .width = 64, .bias = true, .logit_scale = 2},
                                   tied ? table : nullptr);
    const auto own = head->named_parameters();
    ASSERT_EQ(own.size(), tied ? 1u : 2u);
    const torch::NoGradGuard no_grad;
    own["bias"].normal_();
    if (!tied) own["weight"].copy_(rows);
    const Tensor expected = (InFp64(x_).matmul(InFp64(rows).t()) + InFp64(own["bias"])) * 2;
    EXPECT_LE(LargestError(head->Logits(x_), expected), 1e-6);
    const Tensor labels = torch::randint(0, 10, {3, 5}, torch::kInt64);
    const Tensor sum =
        at::cross_entropy_loss(expected.flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum);
    EXPECT_LE(LargestError(head->SumOfLosses(x_, labels, 1), sum), 1e-6);
  }
}

}  // namespace
}  // namespace gemini::trainer
