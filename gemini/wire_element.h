// SPDX-License-Identifier: Apache-2.0
// Elements of a vector in a verified FlatBuffer. The verifier knows that they lie inside the
// buffer, not that those of 8 bytes are aligned: who wrote the buffer decides that, and a
// misaligned one may not be looked at in place.
#pragma once
#include <cstring>
#include <type_traits>

#include "flatbuffers/flatbuffers.h"

namespace gemini {

// Returns a copy of element `index`, which is in the vector, of numbers or structs.
template <typename Element>
auto ElementOf(const flatbuffers::Vector<Element>& from, flatbuffers::uoffset_t index) {
  std::remove_const_t<std::remove_pointer_t<Element>> copy;
  std::memcpy(&copy, from.Data() + index * sizeof(copy), sizeof(copy));
  if constexpr (std::is_pointer_v<Element>) {
    return copy;
  } else {
    return flatbuffers::EndianScalar(copy);
  }
}

// Calls `convert` with what the vector's own Get gives, a number or a pointer to a struct, that
// lives as long as the call.
template <typename Element, typename Convert>
auto ConvertElement(const flatbuffers::Vector<Element>& from, flatbuffers::uoffset_t index,
                    Convert convert) {
  const auto copy = ElementOf(from, index);
  if constexpr (std::is_pointer_v<Element>) {
    return convert(&copy);
  } else {
    return convert(copy);
  }
}

}  // namespace gemini
