// SPDX-License-Identifier: Apache-2.0
// The fp32 values of elements in the chunks of their bundle, whatever the format that they are kept in
// (gemini/state_format.h).
// Thread: any. Units: elements of the bundle; values are fp32.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "gemini/element_type.h"

namespace gemini::client {

// The chunks that hold one value of a bundle's elements, each of chunk_bytes: one of elements without a
// master, a parameter and its master, or fp32 values in one or two chunks.
struct ValueChunks {
  ElementType element =
      ElementType::kFp32;  // Of the first chunk; of a parameter if there are others.
  bool is_moment = false;  // fp32 in all chunks, whatever `element` is.
  int64_t chunk_bytes = 0;
  absl::InlinedVector<std::byte*, 3> chunks = {};
};

// Reads the values of elements [first, first + values.size()), which lie in the bundle.
void LoadValues(const ValueChunks& from, int64_t first, absl::Span<float> values);
// Writes them. Without a master a 16-bit element is rounded to nearest, ties to even.
void StoreValues(const ValueChunks& to, int64_t first, absl::Span<const float> values);

}  // namespace gemini::client
