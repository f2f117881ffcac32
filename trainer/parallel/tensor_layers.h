// SPDX-License-Identifier: Apache-2.0
// Declares a set of layers that several ranks compute together: each has parts of their parameters,
// or of the sequences. The model that is made of them returns the same losses and logits in all of
// these ranks. Its backward gives a rank the gradients of the parameters that it has, of its
// tokens: only ranks that have the same parameters and other tokens are left to add theirs.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "c10/util/Exception.h"
#include "trainer/layer_set.h"
#include "trainer/parallel/parameter_boxes.h"

namespace gemini::trainer {

class TensorLayers : public LayerSet {
 public:
  // Returns what a parameter of one of its layers is of the whole model's. Throws c10::Error if the
  // set has not said it.
  virtual ParameterBoxes BoxesOf(const torch::Tensor& parameter) const {
    const auto found = boxes_.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK(found != boxes_.end(), "a parameter that is neither divided nor whole");
    return found->second;
  }

  // Lines of ranks alone make tokens of images: CheckLayout refuses other ways to divide them.
  std::shared_ptr<Layer> Patches(const ImageSpec& /*image*/, int64_t /*width*/) override {
    TORCH_CHECK(false, "images are not divided among ranks");
  }
  std::shared_ptr<Layer> ImageTokens(const ImageSpec& /*image*/, int64_t /*width*/) override {
    TORCH_CHECK(false, "images are not divided among ranks");
  }

 protected:
  // Says it of `layer`'s parameter `name`.
  void Note(const LayerModule& layer, const std::string& name, ParameterBoxes boxes) {
    const torch::Tensor parameter = layer.named_parameters(/*recurse=*/false)[name];
    TORCH_CHECK(parameter.sizes() == boxes.local_sizes(), "boxes of another size");
    boxes_.emplace(parameter.unsafeGetTensorImpl(), std::move(boxes));
  }

 private:
  std::map<const c10::TensorImpl*, ParameterBoxes> boxes_;
};

}  // namespace gemini::trainer
