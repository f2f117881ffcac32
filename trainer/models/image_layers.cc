// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/image_layers.h"

#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"

namespace gemini::trainer {
namespace {

constexpr char kWeight[] = "weight";
constexpr char kBias[] = "bias";
constexpr char kClassToken[] = "cls_token";
constexpr char kPositions[] = "position_embeddings";

}  // namespace

PatchLayer::PatchLayer(const ImageSpec& image, int64_t width, const torch::TensorOptions& options)
    : image_(image) {
  register_parameter(
      kWeight,
      torch::empty({width, image.channels, image.patch_height, image.patch_width}, options));
  register_parameter(kBias, torch::empty({width}, options));
}

torch::Tensor PatchLayer::Forward(const torch::Tensor& pixels) const {
  const torch::Tensor weight = Own(kWeight);
  const int64_t rows = image_.height / image_.patch_height;
  const int64_t columns = image_.width / image_.patch_width;
  // A patch's elements are in the order of the weight's: channel, row, column.
  const torch::Tensor patches = pixels.to(weight.scalar_type())
                                    .view({pixels.size(0), image_.channels, rows,
                                           image_.patch_height, columns, image_.patch_width})
                                    .permute({0, 2, 4, 1, 3, 5})
                                    .reshape({pixels.size(0), rows * columns, -1});
  return at::linear(patches, weight.flatten(1), Own(kBias));
}

ImageTokenLayer::ImageTokenLayer(const ImageSpec& image, int64_t width,
                                 const torch::TensorOptions& options) {
  register_parameter(kClassToken, torch::empty({1, 1, width}, options));
  register_parameter(kPositions, torch::empty({1, 1 + image.num_patches(), width}, options));
}

torch::Tensor ImageTokenLayer::Forward(const torch::Tensor& patches) const {
  const torch::Tensor first = Own(kClassToken).expand({patches.size(0), -1, -1});
  return at::cat({first, patches}, /*dim=*/1) + Own(kPositions);
}

}  // namespace gemini::trainer
