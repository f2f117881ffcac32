// SPDX-License-Identifier: Apache-2.0
// Visits the values of a tensor's piece block by block, so that converting between the format of a
// space and fp32 needs no buffer of a tensor's size.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/torch/model/model_tensors.h"
#include "client/update/bundle_update.h"
#include "gemini/element_type.h"
#include "gemini/moment_format.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {

// Calls each(first, values) with a buffer for the values of every block of the piece, in rising
// order: `first` is the block's first element in the bundle. Ends with the first error of `each`.
template <typename Each>
absl::Status ForValueBlocks(const ModelTensor& tensor, const TensorPiece& piece, Each each) {
  constexpr int64_t kBlockElements = 16 * 1024;
  static_assert(kBlockElements % kQuantisationBlockElements == 0);
  std::array<float, kBlockElements> block;
  const int64_t element_bytes = ElementBytes(tensor.element);
  const int64_t count = piece.size_bytes / element_bytes;
  for (int64_t done = 0; done < count; done += kBlockElements) {
    const auto size = static_cast<size_t>(std::min(kBlockElements, count - done));
    GEMINI_RETURN_IF_ERROR(
        each(piece.chunk_offset_bytes / element_bytes + done, absl::MakeSpan(block.data(), size)));
  }
  return absl::OkStatus();
}

}  // namespace gemini::client::hooks
