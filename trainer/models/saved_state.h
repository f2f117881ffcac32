// SPDX-License-Identifier: Apache-2.0
// Lets an autograd function keep something beside tensors from forward to backward: an object of
// its own type, which its graph node owns.
#pragma once
#include <utility>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"

namespace gemini::trainer {

// `State` derives from torch::CustomClassHolder. A function saves one, once.
template <typename State>
void SaveState(torch::autograd::AutogradContext* context, c10::intrusive_ptr<State> state) {
  context->saved_data["state"] =
      at::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(std::move(state)));
}

template <typename State>
c10::intrusive_ptr<State> SavedState(torch::autograd::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<State>(context->saved_data["state"].toCapsule());
}

}  // namespace gemini::trainer
