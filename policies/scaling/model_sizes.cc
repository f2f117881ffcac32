// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/model_sizes.h"

#include <cstddef>

namespace gemini::policies {

double BlockSizes::parameters() const {
  double sum = 0;
  for (const MatrixSizes& matrix : matrices) sum += matrix.parameters();
  return sum;
}

double BlockSizes::flops_of_token() const {
  double sum = attention_flops_of_token();
  for (const MatrixSizes& matrix : matrices) sum += matrix.flops_of_token();
  return sum;
}

double BlockSizes::kept_between() const {
  double sum = gated_width;
  for (const MatrixSizes& matrix : matrices) sum += kept_between(matrix);
  return sum;
}

double ModelSizes::parameters() const {
  double sum = embedding_parameters + 2 * projection_parameters + (tied_head ? 0 : head_parameters);
  for (const BlockSizes& block : blocks) sum += block.parameters();
  return sum;
}

double ModelSizes::flops_of_token() const {
  double forward = 2 * (head_parameters + 2 * projection_parameters);
  for (const BlockSizes& block : blocks) forward += block.flops_of_token();
  return 3 * forward;
}

ModelSizes SizesOf(const GptShape& shape) {
  const auto width = static_cast<double>(shape.width);
  BlockSizes block;
  block.matrices = {{.in = width, .out = 3 * width},
                    {.in = width, .out = width, .leads_out = true},
                    {.in = width, .out = 4 * width},
                    {.in = 4 * width, .out = width, .leads_out = true}};
  block.query_width = block.key_width = width;
  block.num_key_heads = shape.num_heads;
  block.moved_between = 2 * 4 * width;
  block.seen_tokens = static_cast<double>(shape.sequence) / 2;
  ModelSizes sizes;
  sizes.blocks.resize(static_cast<size_t>(shape.num_blocks), block);
  sizes.width = width;
  sizes.embedding_parameters = sizes.head_parameters =
      width * static_cast<double>(shape.vocabulary);
  sizes.num_heads = sizes.num_key_heads = shape.num_heads;
  sizes.feed_width = 4 * shape.width;
  return sizes;
}

}  // namespace gemini::policies
