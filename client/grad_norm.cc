// SPDX-License-Identifier: Apache-2.0
// The square of an fp32 value is exact in double, so contraction into an fma changes no bit; the
// order of the additions is the header's, and no compiler reorders it without -ffast-math.
#include "client/grad_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gemini::client {

void AppendBlockSquares(absl::Span<const float> piece, std::vector<double>& block_squares) {
  const int64_t size = static_cast<int64_t>(piece.size());
  for (int64_t begin = 0; begin < size; begin += kNormBlockElements) {
    const float* const block = piece.data() + begin;
    const int64_t count = std::min(kNormBlockElements, size - begin);
    std::array<double, kNormLanes> lanes = {};
    int64_t i = 0;
    for (; i + kNormLanes <= count; i += kNormLanes) {
      for (int64_t lane = 0; lane < kNormLanes; ++lane) {
        const double value = block[i + lane];
        lanes[lane] += value * value;
      }
    }
    for (int64_t lane = 0; i < count; ++i, ++lane) {
      const double value = block[i];
      lanes[lane] += value * value;
    }
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    block_squares.push_back(sum);
  }
}

double NormOf(absl::Span<const double> block_squares) {
  double sum = 0;
  for (const double squares : block_squares) sum += squares;
  return std::sqrt(sum);
}

double ClipCoefficient(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  // The addend of torch.nn.utils.clip_grad_norm_, which keeps a norm of zero from dividing.
  constexpr double kAddend = 1e-6;
  const double coefficient = max_norm / (norm + kAddend);
  return std::isnan(coefficient) ? coefficient : std::min(1.0, coefficient);
}

}  // namespace gemini::client
