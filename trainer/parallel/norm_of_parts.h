// SPDX-License-Identifier: Apache-2.0
// Computes a norm of tokens whose elements are divided among the ranks of a line: each has equally
// many of each token, and computes its part of the result.
// Sends:  two numbers a token forward, a mean and a sum of squares about it, and the sum of two
//         backward; an RMS norm one, and the sum of one. So nothing cancels, as it would in the
//         mean of squares less the squared mean.
// Bits:   ranks merge the same numbers in the same order, and get the same statistics.
// Type:   in fp32, and rounded once; of fp64 in that.
// Graph:  no second derivative.
// Errors: as tensor_exchange.h.
// Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
//         variances" (1979), for the merge.
#pragma once
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

// Returns the norm of x [.., elements] in its shape and dtype. `weight` and `bias` are [elements],
// or undefined; each rank gets the gradients that come of its tokens.
torch::Tensor NormOfParts(const torch::Tensor& x, const torch::Tensor& weight,
                          const torch::Tensor& bias, const NormSpec& norm, const RankLine& line);

}  // namespace gemini::trainer
