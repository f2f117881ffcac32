// SPDX-License-Identifier: Apache-2.0
// Makes each kind of id a type, so that one kind of number is never passed for another. Ids count
// from 0 inside their container: bundles in a space, chunks in a space, slots in a tier of a space.
#pragma once
#include <compare>
#include <cstdint>

#include "gemini/chunk_kind.h"

namespace gemini {

template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(int64_t value) : value_(value) {}
  constexpr int64_t value() const { return value_; }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  int64_t value_ = -1;
};

using BundleId = Id<struct BundleTag>;
using ChunkId = Id<struct ChunkTag>;  // bundle * kNumChunkKinds + kind: see ChunkOf.
using SlotId = Id<struct SlotTag>;    // A slot in one tier of a space; it holds one chunk.

constexpr ChunkId ChunkOf(BundleId bundle, ChunkKind kind) {
  return ChunkId(bundle.value() * kNumChunkKinds + static_cast<int64_t>(kind));
}
constexpr BundleId BundleOf(ChunkId chunk) { return BundleId(chunk.value() / kNumChunkKinds); }
constexpr ChunkKind KindOf(ChunkId chunk) {
  return static_cast<ChunkKind>(chunk.value() % kNumChunkKinds);
}

}  // namespace gemini
