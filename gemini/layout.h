// SPDX-License-Identifier: Apache-2.0
// Decides where each tensor of a space lies, by packing tensors into chunks in the order given,
// which should be that of their first use.
// Units: bytes, unless a name says chunks or bundles. Chunk i of every kind belongs to bundle i.
// Rules: a tensor starts at a multiple of kTensorAlignmentBytes inside a chunk; a trainable one
// with 8-bit moments starts at a block of these. A tensor larger than a chunk's payload
// (gemini/state_format.h) starts a chunk of its own and fills the payloads of consecutive chunks,
// which it shares with no other tensor. A chunk holds tensors of one group, so that a frozen
// parameter or a buffer has no optimizer state.
// Source: chunk packing of PatrickStar (Fang et al., arXiv:2108.05818, section 5).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/ids.h"
#include "gemini/state_format.h"

namespace gemini {

// Math libraries choose kernels by alignment, and other kernels give other bits.
inline constexpr int64_t kTensorAlignmentBytes = 256;
inline constexpr int64_t kPageBytes = 4096;
// 2^22: a bundle needs two commit records, and a commit word names fewer than 2^24 (commit_shm.h).
inline constexpr int64_t kMaxBundles = int64_t{1} << 22;
inline constexpr int64_t kMaxChunkBytes = int64_t{1} << 40;  // Keeps sums from overflowing.

enum class TensorGroup : uint8_t {
  kTrainable,  // Bundles have chunks of all kinds.
  kFrozen,     // Bundles have one param chunk.
  kBuffer,     // As kFrozen, but written by the forward pass.
};

struct TensorSpec {
  std::string name;
  int64_t size_bytes = 0;  // >= 0; an empty tensor takes no room in a chunk of its group.
  TensorGroup group = TensorGroup::kTrainable;
};

struct TensorPlace {
  BundleId first_bundle;     // The chunk of this bundle holds the tensor's first byte.
  int64_t num_bundles = 1;   // If more than 1, the tensor spans whole payloads from offset 0.
  int64_t offset_bytes = 0;  // Inside the first chunk.
  bool operator==(const TensorPlace&) const = default;
};

class Layout {
 public:
  // Packs `tensors` in their order; the state of trainable ones is kept in `format`.
  // INVALID_ARGUMENT: chunk_bytes is not a positive multiple of kPageBytes, is above kMaxChunkBytes
  // or has no payload in this format, a size is negative, or more than kMaxBundles are needed.
  static absl::StatusOr<Layout> Pack(absl::Span<const TensorSpec> tensors, int64_t chunk_bytes,
                                     const StateFormat& format = {});

  int64_t chunk_bytes() const { return chunk_bytes_; }
  int64_t payload_bytes() const { return payload_bytes_; }
  int64_t num_bundles() const { return static_cast<int64_t>(groups_.size()); }
  // Returns the place of tensor i of the span given to Pack.
  const TensorPlace& place(int64_t tensor) const { return places_[tensor]; }
  TensorGroup group(BundleId bundle) const { return groups_[bundle.value()]; }
  // Returns the bytes of all chunks that no tensor uses.
  int64_t padding_bytes() const { return padding_bytes_; }

 private:
  int64_t chunk_bytes_ = 0;
  int64_t payload_bytes_ = 0;
  int64_t padding_bytes_ = 0;
  std::vector<TensorPlace> places_;
  std::vector<TensorGroup> groups_;  // By BundleId.
};

}  // namespace gemini
