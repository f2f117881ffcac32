// SPDX-License-Identifier: Apache-2.0
// Elements of a vector in a verified FlatBuffer. The verifier knows that a vector's structs lie inside the buffer,
// not that they are aligned: who wrote the buffer decides that, and a misaligned one may not be looked at in place.
#pragma once
#include <cstring>
#include <type_traits>

#include "flatbuffers/flatbuffers.h"

namespace gemini {

// Calls `convert` with element `index`, which is in the vector: as the vector's own Get, but structs are copied,
// and live as long as the call.
template <typename Element, typename Convert>
auto ConvertElement(const flatbuffers::Vector<Element>& from, flatbuffers::uoffset_t index,
                    Convert convert) {
  if constexpr (std::is_pointer_v<Element>) {
    std::remove_const_t<std::remove_pointer_t<Element>> copy;
    std::memcpy(&copy, from.Data() + index * sizeof(copy), sizeof(copy));
    return convert(&copy);
  } else {
    return convert(from.Get(index));
  }
}

}  // namespace gemini
