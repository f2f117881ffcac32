// SPDX-License-Identifier: Apache-2.0
// Wraps a layer in another one, which has the same parameters under the same names and computes
// with it.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "trainer/layer_set.h"

namespace gemini::trainer {

// `Base` is Layer, or one of those that a LayerSet returns beside it.
template <typename Base>
class WrappedLayer : public Base {
 public:
  void Replace(const std::string& name, torch::Tensor tensor) override {
    inner_->Replace(name, std::move(tensor));
  }

 protected:
  explicit WrappedLayer(std::shared_ptr<Base> inner) : inner_(std::move(inner)) {
    for (const auto& own : inner_->named_parameters(/*recurse=*/false)) {
      this->register_parameter(own.key(), own.value());
    }
  }
  const Base& inner() const { return *inner_; }

 private:
  const std::shared_ptr<Base> inner_;  // No child: its parameters are this one's.
};

}  // namespace gemini::trainer
