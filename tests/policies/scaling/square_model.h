// SPDX-License-Identifier: Apache-2.0
// Small models of GPT's shape for tests of forecasts.
#pragma once
#include <cstdint>

#include "policies/scaling/model_sizes.h"

namespace gemini::policies {

struct SquareSizes {
  int64_t blocks = 4;
  int64_t width = 64;
  int64_t vocabulary = 0;
  int64_t sequence = 16;
  int64_t heads = 4;
};

inline ModelSizes SquareModel(const SquareSizes& sizes) {
  return SizesOf(GptShape{.num_blocks = sizes.blocks,
                          .width = sizes.width,
                          .num_heads = sizes.heads,
                          .vocabulary = sizes.vocabulary,
                          .sequence = sizes.sequence});
}

}  // namespace gemini::policies
