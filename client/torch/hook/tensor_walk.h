// SPDX-License-Identifier: Apache-2.0
// Finds every tensor inside an operator's input, however deep: Tensor, Tensor?, Tensor[],
// Tensor?[], Tensor[][], tuples and dictionaries. All index operators take Tensor?[], so a walk
// that stopped at Tensor[] would leave their operands without an address.
#pragma once
#include "ATen/core/ivalue.h"
#include "ATen/core/ivalue_inl.h"
#include "c10/core/TensorImpl.h"

namespace gemini::client::hooks {

// Calls visit(c10::TensorImpl*) for each tensor in `value`. Takes no references, allocates nothing.
template <typename Visitor>
void ForEachTensor(const c10::IValue& value, Visitor&& visit) {
  if (value.isTensor()) {
    visit(value.unsafeToTensorImpl());
    return;
  }
  if (!value.isPtrType()) return;  // None, numbers, bools: most of the remaining inputs.
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      // Lists have one element type, so in one of numbers or strings the rest is skipped.
      if (!element.isTensor() && !element.isNone() && !element.isPtrType()) return;
      ForEachTensor(element, visit);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) ForEachTensor(element, visit);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      ForEachTensor(entry.key(), visit);
      ForEachTensor(entry.value(), visit);
    }
  }
}

}  // namespace gemini::client::hooks
