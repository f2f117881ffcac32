// SPDX-License-Identifier: Apache-2.0
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "trainer/models/dropout_gpu.h"
#include "trainer/models/dropout_kernel_cuda.h"

namespace gemini::trainer {
namespace {

cudaStream_t StreamOf(const torch::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

void Check(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "dropout's kernel: ", cudaGetErrorString(error));
}

ElementType TypeOf(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat32:
      return ElementType::kFp32;
    case torch::kBFloat16:
      return ElementType::kBf16;
    case torch::kFloat16:
      return ElementType::kFp16;
    default:
      TORCH_CHECK(false, "dropout on a GPU of ", tensor.scalar_type());
  }
}

}  // namespace

void DropOnGpu(const MaskFactors& factors, const torch::Tensor& in, const torch::Tensor& out) {
  const c10::cuda::CUDAGuard guard(in.device());
  Check(EnqueueDropout(factors, TypeOf(in), in.const_data_ptr(), out.mutable_data_ptr(), in.numel(),
                       StreamOf(in)));
}

void FillOnGpu(const MaskFactors& factors, const MaskBox& box, const torch::Tensor& out) {
  const c10::cuda::CUDAGuard guard(out.device());
  Check(EnqueueFactors(factors, box, out.mutable_data_ptr<float>(), StreamOf(out)));
}

}  // namespace gemini::trainer
