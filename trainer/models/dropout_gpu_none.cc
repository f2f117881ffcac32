// SPDX-License-Identifier: Apache-2.0
// Of a build without CUDA.
#include "trainer/models/dropout_gpu.h"

namespace gemini::trainer {

void DropOnGpu(const MaskFactors&, const torch::Tensor&, const torch::Tensor&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "dropout on a GPU: this build has no CUDA");
}

void FillOnGpu(const MaskFactors&, const MaskBox&, const torch::Tensor&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "dropout on a GPU: this build has no CUDA");
}

}  // namespace gemini::trainer
