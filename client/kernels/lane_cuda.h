// SPDX-License-Identifier: Apache-2.0
// Implements one fp32 lane for CUDA kernels, with the arithmetic of
// client/kernels/lanes_portable.h: on the GPU each operation is the intrinsic that rounds correctly
// and is never fused with another. Kernels are compiled with --ftz=false, to keep denormals. On the
// host, where tests compare it with other lanes, it must be compiled with -ffp-contract=off.
#pragma once
#include <bit>
#include <cmath>

#include "gemini/host_device.h"
#include "gemini/split_float.h"

namespace gemini::client {

struct LaneCuda {
  using Floats = float;

  GEMINI_HOST_DEVICE static float Set(float value) { return value; }
#ifdef __CUDA_ARCH__
  __device__ static float Add(float a, float b) { return __fadd_rn(a, b); }
  __device__ static float Sub(float a, float b) { return __fsub_rn(a, b); }
  __device__ static float Mul(float a, float b) { return __fmul_rn(a, b); }
  __device__ static float Div(float a, float b) { return __fdiv_rn(a, b); }
  __device__ static float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  __device__ static float Sqrt(float a) { return __fsqrt_rn(a); }
#else
  GEMINI_HOST_DEVICE static float Add(float a, float b) { return a + b; }
  GEMINI_HOST_DEVICE static float Sub(float a, float b) { return a - b; }
  GEMINI_HOST_DEVICE static float Mul(float a, float b) { return a * b; }
  GEMINI_HOST_DEVICE static float Div(float a, float b) { return a / b; }
  GEMINI_HOST_DEVICE static float Fma(float a, float b, float c) { return std::fma(a, b, c); }
  GEMINI_HOST_DEVICE static float Sqrt(float a) { return std::sqrt(a); }
#endif
  GEMINI_HOST_DEVICE static bool IsNaN(float a) { return a != a; }
  // Replaces every NaN by that of kSplitNaN (gemini/split_float.h).
  GEMINI_HOST_DEVICE static float OneNaN(float a) {
    return IsNaN(a) ? std::bit_cast<float>(kSplitNaN) : a;
  }
};

}  // namespace gemini::client
