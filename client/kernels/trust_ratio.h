// SPDX-License-Identifier: Apache-2.0
// Computes the trust ratio: the factor by which a layer-wise optimizer scales the learning rate of
// a tensor. It depends on the norms of the whole tensor's parameter and of its update's direction,
// before any part of the tensor is updated.
//   LAMB  |p| / |u|                   (You et al., arXiv:1904.00962, algorithm 2, phi the identity)
//   LARS  eta |p| / (|g| + wd |p|)    (You et al., arXiv:1708.03888, equation 6)
// client/kernels/update_rules.h defines u and g. Squares are summed in the blocks and the order of
// client/kernels/grad_norm.h, so the bits depend on no chunk, call or path.
// Use:    AppendTrustSquares over the pieces of the tensor in order, NormOf
//         (client/kernels/grad_norm.h) of each list, TrustRatio, then UpdateElements with it, which
//         computes the direction again: nothing is written before the ratio is known.
// Thread: any.
#pragma once
#include <cstdint>
#include <vector>

#include "client/kernels/update_kernel.h"

namespace gemini::client {

struct TrustSquares {
  std::vector<double> param;      // By block.
  std::vector<double> direction;  // By block.
};

// Writes the sums of squares of each block of a tensor piece: NumNormBlocks(count) of the parameter
// and as many of the direction. The piece has `count` elements and starts at a block boundary of
// its tensor (kNormBlockElements). Reads the old streams only. settings.kind must be layer-wise;
// settings.trust_ratio is ignored. A parameter or a gradient in a block that is a NaN or an
// infinity makes the block's sums that depend on it one.
void FindTrustSquares(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count,
                      double* param_sums, double* direction_sums);

// As FindTrustSquares, but appends them.
void AppendTrustSquares(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count,
                        TrustSquares& squares);

// As AppendTrustSquares, through `path`, which must be available.
void AppendTrustSquaresThrough(VectorPath path, const UpdateSettings& settings,
                               const UpdateStreams& streams, int64_t count, TrustSquares& squares);

// Returns the ratio of a tensor with these norms, or 1 if one of them is 0.
double TrustRatio(const UpdateSettings& settings, double param_norm, double direction_norm);

}  // namespace gemini::client
