// SPDX-License-Identifier: Apache-2.0
// Computes the global gradient norm, with bits that do not depend on placement, chunks or ranks.
// Squares are computed in double and summed per block of kNormBlockElements elements of a tensor,
// and the blocks are summed in (tensor, block) order. In a block, element i goes to lane i %
// kNormLanes, each lane is summed in order of i, and the lanes are summed in order. Vector units of
// any width up to kNormLanes can follow this rule.
// Source: the fixed-order rule of docs/architecture.md, "Gradient norm".
// Overflow: squares of any format are exact in double and their sums far from its largest value, so
// a sum is finite if and only if every element is. Loss scaling needs that check.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/element_type.h"

namespace gemini::client {

inline constexpr int64_t kNormBlockElements = 1024;
inline constexpr int64_t kNormLanes = 8;

inline constexpr int64_t NumNormBlocks(int64_t elements) {
  return (elements + kNormBlockElements - 1) / kNormBlockElements;
}

// Writes the sum of squares of each block of `piece`, `count` elements of `type`, to
// NumNormBlocks(count) `sums`. The piece starts at a block boundary of its tensor, and every piece
// except a tensor's last is a multiple of kNormBlockElements. The sum of a block with a NaN or an
// infinity is one.
void BlockSquares(ElementType type, const void* piece, int64_t count, double* sums);

// As BlockSquares, but appends them.
void AppendBlockSquares(ElementType type, const void* piece, int64_t count,
                        std::vector<double>& block_squares);

// As above, for fp32 elements.
void AppendBlockSquares(absl::Span<const float> piece, std::vector<double>& block_squares);

// Returns `sum` plus the blocks, added in order: a NaN or an infinity if any of them is.
double AddInOrder(double sum, absl::Span<const double> block_squares);

// Returns the square root of the sum of `block_squares`, added in order: a NaN or an infinity if
// any of them is.
double NormOf(absl::Span<const double> block_squares);

// Returns the factor that clips a gradient of `norm` to `max_norm`: min(1, max_norm / (norm +
// 1e-6)) as in torch.nn.utils.clip_grad_norm_, or 1 if max_norm <= 0 (no clipping).
double ClipCoefficient(double norm, double max_norm);

}  // namespace gemini::client
