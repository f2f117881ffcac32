// SPDX-License-Identifier: Apache-2.0
// The oracle is Torch's own convolution.
#include "trainer/models/image_layers.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

namespace F = torch::nn::functional;
using ::testing::ElementsAre;
using torch::Tensor;

constexpr int64_t kWidth = 10;
constexpr ImageSpec kImage = {
    .channels = 3, .height = 8, .width = 15, .patch_height = 2, .patch_width = 5};

void SetParameters(torch::nn::Module& layer) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : layer.parameters()) parameter.normal_();
}

Tensor Convolved(const Tensor& pixels, const Tensor& weight, const Tensor& bias) {
  return F::conv2d(
             pixels, weight,
             F::Conv2dFuncOptions().bias(bias).stride({kImage.patch_height, kImage.patch_width}))
      .flatten(2)
      .transpose(1, 2);
}

TEST(ImageLayersTest, PatchesAreThoseOfAConvolution) {
  PatchLayer layer(kImage, kWidth, torch::kFloat64);
  SetParameters(layer);
  const auto named = layer.named_parameters();
  EXPECT_THAT(named.keys(), ElementsAre("weight", "bias"));
  EXPECT_THAT(named["weight"].sizes().vec(), ElementsAre(kWidth, 3, 2, 5));
  const Tensor pixels = torch::randn({4, 3, 8, 15}, torch::kFloat64);
  const Tensor ours = layer.Forward(pixels);
  const Tensor theirs = Convolved(pixels, named["weight"], named["bias"]);
  EXPECT_THAT(ours.sizes().vec(), ElementsAre(4, kImage.num_patches(), kWidth));
  EXPECT_TRUE(torch::allclose(ours, theirs));
  const Tensor factors = torch::randn_like(ours);
  const std::vector<Tensor> parameters = {named["weight"], named["bias"]};
  const auto our_gradients = torch::autograd::grad({(ours * factors).sum()}, parameters);
  const auto their_gradients = torch::autograd::grad({(theirs * factors).sum()}, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(our_gradients[i], their_gradients[i])) << i;
  }
}

TEST(ImageLayersTest, PixelsTakeTheTypeOfTheParameters) {
  PatchLayer layer(kImage, kWidth, torch::kBFloat16);
  SetParameters(layer);
  const Tensor pixels = torch::randn({1, 3, 8, 15});
  const Tensor ours = layer.Forward(pixels);
  EXPECT_EQ(ours.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(ours, layer.Forward(pixels.to(torch::kBFloat16))));
}

TEST(ImageLayersTest, TheClassTokenIsFirstAndEachHasItsPosition) {
  ImageTokenLayer layer(kImage, kWidth, torch::kFloat64);
  SetParameters(layer);
  const auto named = layer.named_parameters();
  EXPECT_THAT(named.keys(), ElementsAre("cls_token", "position_embeddings"));
  EXPECT_THAT(named["cls_token"].sizes().vec(), ElementsAre(1, 1, kWidth));
  const Tensor positions = named["position_embeddings"];
  EXPECT_THAT(positions.sizes().vec(), ElementsAre(1, 1 + kImage.num_patches(), kWidth));
  const Tensor patches = torch::randn({2, kImage.num_patches(), kWidth}, torch::kFloat64);
  const Tensor tokens = layer.Forward(patches);
  EXPECT_TRUE(torch::equal(tokens[1][0], named["cls_token"][0][0] + positions[0][0]));
  EXPECT_TRUE(torch::equal(tokens[0][1], patches[0][0] + positions[0][1]));
  EXPECT_TRUE(torch::equal(tokens[1][12], patches[1][11] + positions[0][12]));
}

}  // namespace
}  // namespace gemini::trainer
