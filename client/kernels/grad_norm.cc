// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/grad_norm.h"

#include <algorithm>
#include <cmath>

#include "client/kernels/default_rounding.h"
#include "client/kernels/update_loops.h"

namespace gemini::client {

static_assert(kNormBlockElements == kNormLoopBlockElements);

void BlockSquares(ElementType type, const void* piece, int64_t count, double* sums) {
  const DefaultRounding rounding;
  LoopsOf(WidestVectorPath()).squares(type, piece, count, sums);
}

void AppendBlockSquares(ElementType type, const void* piece, int64_t count,
                        std::vector<double>& block_squares) {
  const size_t before = block_squares.size();
  block_squares.resize(before + static_cast<size_t>(NumNormBlocks(count)));
  BlockSquares(type, piece, count, block_squares.data() + before);
}

void AppendBlockSquares(absl::Span<const float> piece, std::vector<double>& block_squares) {
  AppendBlockSquares(ElementType::kFp32, piece.data(), static_cast<int64_t>(piece.size()),
                     block_squares);
}

double AddInOrder(double sum, absl::Span<const double> block_squares) {
  for (const double squares : block_squares) sum += squares;
  return sum;
}

double NormOf(absl::Span<const double> block_squares) {
  return std::sqrt(AddInOrder(0, block_squares));
}

double ClipCoefficient(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  // The addend of torch.nn.utils.clip_grad_norm_, which keeps a norm of zero from dividing.
  constexpr double kAddend = 1e-6;
  const double coefficient = max_norm / (norm + kAddend);
  return std::isnan(coefficient) ? coefficient : std::min(1.0, coefficient);
}

}  // namespace gemini::client
