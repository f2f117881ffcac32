// SPDX-License-Identifier: Apache-2.0
// Names the streams that an update of a run of elements reads and writes: one array of `count`
// elements for each value, all for the same elements of one tensor.
// Ownership: the streams belong to the caller; no address is kept.
// Alignment: that of the element. NVMe I/O and GPUs need more; updates on the CPU do not.
#pragma once
#include <cstdint>

#include "gemini/element_type.h"

namespace gemini::client {

// `param_type` says how a parameter, which is always fp32 to the arithmetic, is stored:
//   kFp32  param: fp32.                         master: null.
//   kBf16  param: bf16, the high half.          master: int16, the low half (gemini/split_float.h).
//   kFp16  param: fp16, not read, but written as the master to nearest, ties to even.  master:
//   fp32.
// An old moment that is null stands for zeros. The second moment is unused, and may be null, for
// kinds without one. An output may be its input (in place), and overlaps nothing else.
struct UpdateStreams {
  ElementType param_type = ElementType::kFp32;
  ElementType grad_type = ElementType::kFp32;  // Any of the three, whatever the parameter's type.
  const void* param = nullptr;
  const void* master = nullptr;
  const void* grad = nullptr;
  const float* exp_avg = nullptr;
  const float* exp_avg_sq = nullptr;
  void* new_param = nullptr;
  void* new_master = nullptr;
  float* new_exp_avg = nullptr;
  float* new_exp_avg_sq = nullptr;
};

// Returns the bytes of an element of the master of such a parameter. Always inlined, because
// sources of the instruction sets use it (client/kernels/lanes_avx512.h).
[[gnu::always_inline]] constexpr int64_t MasterBytes(ElementType param_type) {
  return param_type == ElementType::kBf16 ? 2 : 4;
}

}  // namespace gemini::client
