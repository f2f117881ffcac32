// SPDX-License-Identifier: Apache-2.0
// Reads elements of a vector in a verified FlatBuffer. The verifier checks that they lie inside the
// buffer, but not that 8-byte elements are aligned. The writer decides the alignment, and a
// misaligned element must not be read in place.
#pragma once
#include <cstring>
#include <type_traits>

#include "flatbuffers/flatbuffers.h"

namespace gemini {

// Returns a copy of element `index`. `index` is inside the vector, whose elements are numbers or
// structs.
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

// Calls `convert` with what the vector's own Get returns, a number or a pointer to a struct. The
// pointer is valid during the call only.
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
