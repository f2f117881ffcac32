// SPDX-License-Identifier: Apache-2.0
// Applies dropout by the masks of trainer/models/dropout_mask.h.
// Bits: the same on CPUs and GPUs. fp64 is for tests, on CPUs alone.
// Memory: no mask is kept. Backward computes it again.
// Errors: c10::Error: a type that is not floating, or fp64 on a GPU; a device other than a CPU, a
// GPU or meta; a GPU in a build without CUDA.
// Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting",
// JMLR 15 (2014); what is kept is scaled in training.
#pragma once
#include "torch/types.h"
#include "trainer/models/dropout_mask.h"

namespace gemini::trainer {

// Returns x with each element multiplied by the mask's factor, of 16 bits in fp32 and rounded once,
// as a contiguous tensor of its dtype; x itself where the mask drops nothing. An element's place is
// that in the contiguous x.
torch::Tensor DropOut(const torch::Tensor& x, const DropoutMask& mask);
// The same for a part of what the mask is of: `box` says where the elements of the contiguous x
// are. On a GPU that is all of it.
torch::Tensor DropOut(const torch::Tensor& x, const DropoutMask& mask, const MaskBox& box);

// Writes the factors of the box's elements to `factors`: fp32, contiguous, as many elements as the
// box has. Autograd does not see it.
void FillFactors(const DropoutMask& mask, const MaskBox& box, const torch::Tensor& factors);

// What Torch's profilers see for each mask that is computed: an event of this name, with the inputs
// probability (double), key (int), and a list of the six numbers of the box in their order.
inline constexpr char kDropoutEvent[] = "gemini::dropout";

}  // namespace gemini::trainer
