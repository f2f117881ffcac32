// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_layers_2d.h"

namespace gemini::trainer {

using policies::TensorAxis;

GridPlan PlanOf2d(const policies::TensorGrid& grid, int64_t place, const GridLines& lines) {
  const int64_t i = grid.coordinate(place, TensorAxis::kI);
  const int64_t j = grid.coordinate(place, TensorAxis::kJ);
  const int64_t k = grid.coordinate(place, TensorAxis::kK);
  const int64_t q = grid.size(TensorAxis::kJ), depth = grid.size(TensorAxis::kK);
  const RankLine &row = lines.j, &column = lines.i;
  const EqualPart sequences = {k * q + i, depth * q}, columns = {j, q};
  const MatrixPlan matrix = {.in = {TensorAxis::kI},
                             .out = {TensorAxis::kJ},
                             .input = {row, /*dimension=*/-1},
                             .matrix = column,
                             .output = {},
                             .same_output = {column}};
  return {.grid = grid,
          .sequences = sequences,
          .width_part = columns,
          .width = row,
          .width_axes = {TensorAxis::kJ},
          .same_width = {column},
          .into = matrix,
          .out_of = matrix,
          .inner_sequences = sequences,
          .inner_part = columns,
          .inner = row,
          .vocabulary_axes = {TensorAxis::kI},
          .rows = {i, q},
          .table = {},
          .embedded_sequences = {k, depth},
          .embedding_sum = column,
          .head_input = {},
          .head_table = column,
          .head_output = row,
          .logit_sequences = sequences,
          .logit_rows = columns,
          .other_rows = {row},
          .other_sequences = {column, lines.k}};
}

}  // namespace gemini::trainer
