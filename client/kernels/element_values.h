// SPDX-License-Identifier: Apache-2.0
// Reads and writes the fp32 values of elements in the chunks of their bundle, whatever the format
// that they are kept in (gemini/state_format.h).
// Rules:  8-bit moments are loaded and stored from the beginning of a block on, in whole blocks,
//         except for the last block of a tensor.
// Thread: any. Units: elements of the bundle; values are fp32.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "gemini/chunk_kind.h"
#include "gemini/state_format.h"

namespace gemini::client {

// The chunks, each of chunk_bytes, that together hold one value of each element of a bundle. They
// are one chunk of elements without a master, a parameter and its master, fp32 values in one or two
// chunks, or 8-bit moments.
struct ValueChunks {
  StateFormat format = {};  // For a frozen parameter or a buffer only its element type counts.
  ChunkKind value = ChunkKind::kParam;
  int64_t chunk_bytes = 0;
  absl::InlinedVector<std::byte*, 3> chunks = {};
};

// Returns whether the values are 8-bit moments.
bool IsQuantised(const ValueChunks& at);

// Reads the values of elements [first, first + values.size()), which must be in the bundle.
void LoadValues(const ValueChunks& from, int64_t first, absl::Span<float> values);
// Writes the values of elements [first, first + values.size()). A 16-bit element without a master
// is rounded to nearest, ties to even; 8-bit moments are rounded to nearest.
void StoreValues(const ValueChunks& to, int64_t first, absl::Span<const float> values);

}  // namespace gemini::client
