// SPDX-License-Identifier: Apache-2.0
// Plans how the ranks of a cube share layers. Rank (k, j, i) has one of q x q parts of the
// sequences, and one of q of the width. Tensors lie in one of two orientations, and a linear layer
// leads from one to the other: it gathers parts of its input along one axis and of its matrix along
// another, and adds up parts of its output along the third. Blocks begin and end in orientation X.
// X:      sequences block i coarse, j fine; width block k.
// Y:      the same with j and k exchanged.
// Shapes: X [T/q^2, in/q], W [in/q^2, out/q] and Y [T/q^2, out/q] of q x q x q ranks. From X to Y
//         a matrix has rows k coarse, i fine, and columns j. Attention, in Y, has a/q heads. The
//         vocabulary's table has rows j coarse, i fine, and columns k. Logits are of sequences
//         block i, and of the vocabulary j coarse, k fine.
// Sends:  a linear layer 2 (T in + in out + T out)/q^2 (q - 1)/q elements, and (T in + in out)/q^2
//         (q - 1)/q to gather again in backward.
// Source: Bian et al., "Maximizing Parallelism in Distributed Training for Huge Neural Networks",
//         arXiv:2105.14450.
#pragma once
#include <cstdint>

#include "trainer/parallel/grid_layers.h"

namespace gemini::trainer {

// Returns the plan of the rank at `place` of a grid of 3d.
GridPlan PlanOf3d(const policies::TensorGrid& grid, int64_t place, const GridLines& lines);

}  // namespace gemini::trainer
