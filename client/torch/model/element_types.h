// SPDX-License-Identifier: Apache-2.0
// Converts between Torch's names of number formats and ours.
#pragma once
#include <optional>

#include "c10/core/ScalarType.h"
#include "gemini/element_type.h"

namespace gemini::client::hooks {

// Returns our name of the format, or no value if tensors of that format are not managed.
inline std::optional<ElementType> ElementTypeOf(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return ElementType::kFp32;
    case c10::ScalarType::BFloat16:
      return ElementType::kBf16;
    case c10::ScalarType::Half:
      return ElementType::kFp16;
    default:
      return std::nullopt;
  }
}

// Returns Torch's name of the format.
inline c10::ScalarType ScalarTypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFp32:
      return c10::ScalarType::Float;
    case ElementType::kBf16:
      return c10::ScalarType::BFloat16;
    case ElementType::kFp16:
      return c10::ScalarType::Half;
  }
  return c10::ScalarType::Undefined;
}

}  // namespace gemini::client::hooks
