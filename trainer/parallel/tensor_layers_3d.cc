// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_layers_3d.h"

namespace gemini::trainer {
namespace {

using policies::TensorAxis;

// How tensors lie: sequences block i coarse, and fine that of the axis `sequences`; width the block
// of the axis `width`.
struct Orientation {
  TensorAxis sequences;
  TensorAxis width;
  Orientation exchanged() const { return {width, sequences}; }
};
constexpr Orientation kX = {TensorAxis::kJ, TensorAxis::kK};

RankLine LineAlong(const GridLines& lines, TensorAxis axis) {
  return axis == TensorAxis::kI ? lines.i : axis == TensorAxis::kJ ? lines.j : lines.k;
}

// Of a matrix whose input lies in `from`, and its output in the other orientation.
MatrixPlan PlanOfMatrix(const Orientation& from, const GridLines& lines) {
  const Orientation to = from.exchanged();
  const RankLine of_input = LineAlong(lines, from.sequences);
  const RankLine of_output = LineAlong(lines, to.sequences);
  return {.in = {from.width, TensorAxis::kI},
          .out = {to.width},
          .input = {of_input, /*dimension=*/0},
          .matrix = lines.i,
          .output = {of_output, /*dimension=*/0},
          .same_output = {of_output, lines.i}};
}

}  // namespace

GridPlan PlanOf3d(const policies::TensorGrid& grid, int64_t place, const GridLines& lines) {
  const int64_t i = grid.coordinate(place, TensorAxis::kI);
  const int64_t j = grid.coordinate(place, TensorAxis::kJ);
  const int64_t k = grid.coordinate(place, TensorAxis::kK);
  const int64_t q = grid.size(TensorAxis::kI);
  const MatrixPlan into = PlanOfMatrix(kX, lines);
  const MatrixPlan out_of = PlanOfMatrix(kX.exchanged(), lines);
  return {.grid = grid,
          .sequences = {i * q + j, q * q},
          .width_part = {k, q},
          .width = lines.k,
          .width_axes = {TensorAxis::kK},
          .same_width = out_of.same_output,
          .into = into,
          .out_of = out_of,
          .inner_sequences = {i * q + k, q * q},
          .inner_part = {j, q},
          .inner = lines.j,
          .vocabulary_axes = {TensorAxis::kJ, TensorAxis::kI},
          .rows = {j * q + i, q * q},
          .table = lines.i,
          .embedded_sequences = {i, q},
          .embedding_sum = lines.j,
          .head_input = into.input,
          .head_table = lines.i,
          .head_output = lines.k,
          .logit_sequences = {i, q},
          .logit_rows = {j * q + k, q * q},
          .other_rows = {lines.k, lines.j},
          .other_sequences = {lines.i}};
}

}  // namespace gemini::trainer
