// SPDX-License-Identifier: Apache-2.0
// A set of layers of which each rank of a tensor grid has a part. The model that is made of them
// returns the same values in all ranks of the grid, and its backward gives each rank the whole
// gradient of what it has: nothing is left to add over ranks that have other parts, or the same.
#pragma once
#include <map>
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
