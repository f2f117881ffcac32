// SPDX-License-Identifier: Apache-2.0
// Launches dropout's kernels on a GPU, on Torch's current stream there. In a build without CUDA
// each throws.
// Errors: c10::Error of the launch. Later ones are reported by whoever waits for the stream.
#pragma once
#include "torch/types.h"
#include "trainer/models/dropout_mask.h"

namespace gemini::trainer {

// Writes each element of `in` times its factor to `out`. Both are contiguous, on one GPU, and of
// one type: fp32, bf16 or fp16.
void DropOnGpu(const MaskFactors& factors, const torch::Tensor& in, const torch::Tensor& out);

// Writes the factors of the box's elements to `out`: fp32, contiguous, on a GPU.
void FillOnGpu(const MaskFactors& factors, const MaskBox& box, const torch::Tensor& out);

}  // namespace gemini::trainer
