// SPDX-License-Identifier: Apache-2.0
// Says which elements dropout drops. That follows from numbers alone: the run's seed, the step, the
// micro-batch, the site in the model and the element's place in its tensor. So a forward that runs
// again, in another order or on another processor, drops the same elements, and no state of a
// generator has to be kept for it.
// Source: the random words are those of Philox (gemini/philox.h).
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "gemini/host_device.h"
#include "gemini/philox.h"

namespace gemini::trainer {

// The forward for which masks are drawn. Two that are equal draw the same masks.
struct DropoutDraw {
  uint64_t seed = 0;
  int64_t step = 0;         // Steps that are completed.
  int64_t micro_batch = 0;  // In [0, 2^32), of all that the step has.
};

// The mask of one site of the model in one micro-batch.
struct DropoutMask {
  double probability = 0;  // With which an element is dropped. 0 drops nothing, whatever the key.
  uint64_t key = 0;
};

// Returns the mask of the site with this number, which is in [0, 2^32), and of no draw a mask that
// drops nothing.
inline DropoutMask MaskOf(const std::optional<DropoutDraw>& draw, int64_t site,
                          double probability) {
  if (!draw.has_value() || probability == 0) return {};
  const auto step = static_cast<uint64_t>(draw->step);
  const std::array<uint32_t, 4> words =
      Philox({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32),
              static_cast<uint32_t>(draw->micro_batch), static_cast<uint32_t>(site)},
             draw->seed);
  return {probability, words[0] | uint64_t{words[1]} << 32};
}

// What a mask multiplies elements by: 0, or 1 / (1 - probability).
class MaskFactors {
 public:
  explicit MaskFactors(const DropoutMask& mask)
      : key_(mask.key),
        dropped_below_(static_cast<uint64_t>(std::llround(mask.probability * 0x1p32))),
        kept_(mask.probability < 1 ? static_cast<float>(1 / (1 - mask.probability)) : 0) {}

  // Returns the factors of elements 4 quad to 4 quad + 3.
  GEMINI_HOST_DEVICE std::array<float, 4> Quad(uint64_t quad) const {
    const std::array<uint32_t, 4> words =
        Philox({static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), 0, 0}, key_);
    return {Factor(words[0]), Factor(words[1]), Factor(words[2]), Factor(words[3])};
  }

 private:
  GEMINI_HOST_DEVICE float Factor(uint32_t word) const { return word < dropped_below_ ? 0 : kept_; }

  const uint64_t key_;
  const uint64_t dropped_below_;  // At most 2^32.
  const float kept_;
};

// The places, in the tensor that a mask is of, of the elements of a part of it with the shape
// [planes, rows, row_size]. Elements of a row are side by side.
struct MaskBox {
  int64_t first = 0;  // Place of the first one.
  int64_t planes = 1;
  int64_t plane_stride = 0;
  int64_t rows = 1;
  int64_t row_stride = 0;
  int64_t row_size = 0;

  // Returns the place of a row's first element. Rows are counted through all planes.
  GEMINI_HOST_DEVICE int64_t RowAt(int64_t row) const {
    return first + row / rows * plane_stride + row % rows * row_stride;
  }
};

}  // namespace gemini::trainer
