// SPDX-License-Identifier: Apache-2.0
// The fp32 values of elements in the chunks of their bundle, whatever the format that they are kept
// in (gemini/state_format.h).
// Rules:  8-bit moments are loaded and stored from the beginning of a block on, in whole blocks
//         except a tensor's last.
// Thread: any. Units: elements of the bundle; values are fp32.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "gemini/chunk_kind.h"
#include "gemini/state_format.h"

namespace gemini::client {

// The chunks that hold one value of a bundle's elements, each of chunk_bytes: one of elements
// without a master, a parameter and its master, fp32 values in one or two chunks, or 8-bit moments.
struct ValueChunks {
  StateFormat format = {};  // For a frozen parameter or a buffer only its element type counts.
  ChunkKind value = ChunkKind::kParam;
  int64_t chunk_bytes = 0;
  absl::InlinedVector<std::byte*, 3> chunks = {};
};

// Returns whether the values are 8-bit moments.
bool IsQuantised(const ValueChunks& at);

// Reads the values of elements [first, first + values.size()), which lie in the bundle.
void LoadValues(const ValueChunks& from, int64_t first, absl::Span<float> values);
// Writes them. Without a master a 16-bit element is rounded to nearest, ties to even; 8-bit moments
// to nearest.
void StoreValues(const ValueChunks& to, int64_t first, absl::Span<const float> values);

}  // namespace gemini::client
