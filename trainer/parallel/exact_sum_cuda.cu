// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/exact_sum_cuda.h"

#include <algorithm>

#include "gemini/half_float.h"

namespace gemini::trainer {
namespace {

constexpr int kThreads = 256;
// What is added is read once, so a few blocks a multiprocessor wait for memory as well as many.
constexpr int64_t kMostBlocks = 1024;

// How a type is stored and added. The functions are those of exact_sum.cc.
struct Doubles {
  using Stored = double;
  static __device__ double Widen(double value) { return value; }
  static __device__ double Narrow(double value) { return value; }
};
struct Floats {
  using Stored = float;
  static __device__ float Widen(float value) { return value; }
  static __device__ float Narrow(float value) { return value; }
};
struct Bf16s {
  using Stored = uint16_t;
  static __device__ float Widen(uint16_t bits) { return FloatOfBf16(bits); }
  static __device__ uint16_t Narrow(float value) { return Bf16Of(value); }
};
struct Fp16s {
  using Stored = uint16_t;
  static __device__ float Widen(uint16_t bits) { return FloatOfFp16(bits); }
  static __device__ uint16_t Narrow(float value) { return Fp16Of(value); }
};

template <typename Type>
__global__ void __launch_bounds__(kThreads)
    Fold(const typename Type::Stored* parts, int64_t num_parts, int64_t elements,
         typename Type::Stored* sum) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += stride) {
    auto all = Type::Widen(parts[i]);
    for (int64_t part = 1; part < num_parts; ++part) all += Type::Widen(parts[part * elements + i]);
    sum[i] = Type::Narrow(all);
  }
}

template <typename Type>
cudaError_t Launch(const std::byte* parts, int64_t num_parts, int64_t elements, std::byte* sum,
                   cudaStream_t stream) {
  if (elements == 0) return cudaSuccess;
  const int64_t blocks = std::min(kMostBlocks, (elements + kThreads - 1) / kThreads);
  Fold<Type><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const typename Type::Stored*>(parts), num_parts, elements,
      reinterpret_cast<typename Type::Stored*>(sum));
  return ::cudaGetLastError();
}

}  // namespace

cudaError_t FoldSumCuda(SumType type, const std::byte* parts, int64_t num_parts, int64_t elements,
                        std::byte* sum, cudaStream_t stream) {
  switch (type) {
    case SumType::kFp64:
      return Launch<Doubles>(parts, num_parts, elements, sum, stream);
    case SumType::kFp32:
      return Launch<Floats>(parts, num_parts, elements, sum, stream);
    case SumType::kBf16:
      return Launch<Bf16s>(parts, num_parts, elements, sum, stream);
    case SumType::kFp16:
      return Launch<Fp16s>(parts, num_parts, elements, sum, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gemini::trainer
