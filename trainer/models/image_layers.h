// SPDX-License-Identifier: Apache-2.0
// Makes tokens of images (LayerSet says what the two layers take and return).
// Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv:2010.11929, section 3.1.
// Names, Memory, Thread, Errors: as of LayerSet.
#pragma once
#include <cstdint>

#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"

namespace gemini::trainer {

// A convolution whose stride is the size of its kernel, computed as a product of matrices: the meta
// device has no convolution.
class PatchLayer : public Layer {
 public:
  PatchLayer(const ImageSpec& image, int64_t width, const torch::TensorOptions& options);
  torch::Tensor Forward(const torch::Tensor& pixels) const override;

 private:
  const ImageSpec image_;
};

class ImageTokenLayer : public Layer {
 public:
  ImageTokenLayer(const ImageSpec& image, int64_t width, const torch::TensorOptions& options);
  torch::Tensor Forward(const torch::Tensor& patches) const override;
};

}  // namespace gemini::trainer
