// SPDX-License-Identifier: Apache-2.0
// Finds the tensors among the arguments of an operator that is recorded: for the hook, and for
// whoever foretells what the hook will see.
#pragma once
#include "ATen/core/function_schema.h"
#include "ATen/record_function.h"
#include "client/torch/hook/tensor_walk.h"

namespace gemini::client::hooks {

// Calls visit(c10::TensorImpl*, int argument) for each tensor in the event's inputs, in their
// order; `argument` counts from 0. `schema` is the event's (SchemaOf in storage_access_2_11.h) and
// may be null. Takes no references, allocates nothing.
template <typename Visitor>
void ForEachInputTensor(const at::RecordFunction& function, const c10::FunctionSchema* schema,
                        Visitor&& visit) {
  c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  // A boxed call shows its whole stack: what lies below the arguments is its caller's.
  if (schema != nullptr && !schema->is_vararg() && inputs.size() > schema->arguments().size()) {
    inputs = inputs.slice(inputs.size() - schema->arguments().size());
  }
  int argument = 0;
  for (const c10::IValue& input : inputs) {
    ForEachTensor(input, [&](c10::TensorImpl* tensor) { visit(tensor, argument); });
    ++argument;
  }
}

}  // namespace gemini::client::hooks
