// SPDX-License-Identifier: Apache-2.0
// Plans how the ranks of a square share layers, and those of several squares, one after the other,
// which is 2.5d. In a square rank (i, j) has block i of the sequences and block j of the width of
// hidden states, and of a matrix [in, out] the block of rows i and columns j. For a product a rank
// gets the panels that it lacks: X of its row and W of its column. So only they are ever whole.
// Depth:  square k of d has the k-th part of the sequences, and the same blocks of parameters as
//         the others. Backward gives gradients of its own sequences, which the caller adds over k,
//         as over ranks that learn from other rows. One square is 2d.
// Shapes: X [T/q, in/q], W [in/q, out/q] and Y [T/q, out/q] of q x q ranks, and in 2.5d T/(d q) in
//         place of T/q. Attention has a/q heads. The vocabulary's table has rows i and columns j,
//         and logits are of sequences i and vocabulary j.
// Sends:  a linear layer 3 (T in + in out)/q (q - 1)/q elements: each panel once in forward, and
//         once in backward, where sums come in parts, too.
// Source: Xu et al., "An Efficient 2D Method for Training Super-Large Deep Learning Models",
//         arXiv:2104.05343; Wang et al., "Tesseract", arXiv:2105.14500. They broadcast panels one
//         after the other, which sends as much.
#pragma once
#include <cstdint>

#include "trainer/parallel/grid_layers.h"

namespace gemini::trainer {

// Returns the plan of the rank at `place` of a grid of 2d or 2.5d.
GridPlan PlanOf2d(const policies::TensorGrid& grid, int64_t place, const GridLines& lines);

}  // namespace gemini::trainer
