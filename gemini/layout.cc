// SPDX-License-Identifier: Apache-2.0
#include "gemini/layout.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"

namespace gemini {

absl::StatusOr<Layout> Layout::Pack(absl::Span<const TensorSpec> tensors, int64_t chunk_bytes,
                                    const StateFormat& format) {
  if (chunk_bytes <= 0 || chunk_bytes % kPageBytes != 0 || chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", chunk_bytes,
                                                   " bytes: it must be a multiple of ", kPageBytes,
                                                   ", up to ", FormatByteSize(kMaxChunkBytes)));
  }
  Layout layout;
  layout.chunk_bytes_ = chunk_bytes;
  layout.payload_bytes_ = PayloadBytes(format, chunk_bytes);
  if (layout.payload_bytes_ == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk of ", chunk_bytes, " bytes: with 8-bit moments it must be a multiple of ",
        4 * kQuantisationBlockElements));
  }
  const int64_t payload_bytes = layout.payload_bytes_;
  const auto alignment = [&](TensorGroup group) {
    return group == TensorGroup::kTrainable && format.moments == MomentFormat::k8Bit
               ? kQuantisationBlockElements * ElementBytes(format.element)
               : kTensorAlignmentBytes;
  };
  // The chunk of each group that still takes tensors, and how much of it is taken.
  struct OpenChunk {
    BundleId bundle;
    int64_t used_bytes = 0;
  };
  std::array<OpenChunk, 3> open_chunks = {};
  int64_t tensor_bytes = 0;
  layout.places_.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    if (tensor.size_bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " has ", tensor.size_bytes, " bytes"));
    }
    OpenChunk& open = open_chunks[static_cast<int>(tensor.group)];
    const bool spans = tensor.size_bytes > payload_bytes;
    const bool fits =
        open.bundle.value() >= 0 && open.used_bytes + tensor.size_bytes <= payload_bytes;
    if (spans || !fits) {
      const BundleId first(layout.num_bundles());
      const int64_t num_bundles = spans ? (tensor.size_bytes - 1) / payload_bytes + 1 : 1;
      if (num_bundles > kMaxBundles - layout.num_bundles()) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", tensor.name, " of ", FormatByteSize(tensor.size_bytes),
                         " would need bundle ", layout.num_bundles() + num_bundles, " of at most ",
                         kMaxBundles, ": use larger chunks than ", FormatByteSize(chunk_bytes)));
      }
      tensor_bytes += tensor.size_bytes;
      layout.groups_.insert(layout.groups_.end(), num_bundles, tensor.group);
      layout.places_.push_back({first, num_bundles, 0});
      // A spanning tensor leaves the chunk that was open as it is: later small ones fill it up.
      if (!spans) open = {first, RoundUp(tensor.size_bytes, alignment(tensor.group))};
      continue;
    }
    tensor_bytes += tensor.size_bytes;
    // An empty tensor may come when its chunk is full: it too must start inside.
    layout.places_.push_back({open.bundle, 1, tensor.size_bytes == 0 ? 0 : open.used_bytes});
    open.used_bytes += RoundUp(tensor.size_bytes, alignment(tensor.group));
  }
  layout.padding_bytes_ = layout.num_bundles() * chunk_bytes - tensor_bytes;
  return layout;
}

}  // namespace gemini
