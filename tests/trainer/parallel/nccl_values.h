// SPDX-License-Identifier: Apache-2.0
// How libraries in NCCL's place add values of its types.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gemini/half_float.h"
#include "trainer/parallel/nccl_library.h"

namespace gemini::trainer {

inline size_t WidthOf(NcclType type) {
  switch (type) {
    case NcclType::kByte:
      return 1;
    case NcclType::kFp16:
    case NcclType::kBf16:
      return 2;
    case NcclType::kFp32:
      return 4;
    case NcclType::kFp64:
      return 8;
  }
  return 1;
}

template <typename Stored, typename Add>
void AddEach(std::byte* sum, const std::byte* next, size_t count, Add add) {
  for (size_t i = 0; i < count; ++i) {
    Stored a, b;
    std::memcpy(&a, sum + i * sizeof(Stored), sizeof(Stored));
    std::memcpy(&b, next + i * sizeof(Stored), sizeof(Stored));
    const Stored c = add(a, b);
    std::memcpy(sum + i * sizeof(Stored), &c, sizeof(Stored));
  }
}
inline void AddValues(NcclType type, std::byte* sum, const std::byte* next, size_t count) {
  switch (type) {
    case NcclType::kFp64:
      return AddEach<double>(sum, next, count, [](double a, double b) { return a + b; });
    case NcclType::kFp32:
      return AddEach<float>(sum, next, count, [](float a, float b) { return a + b; });
    case NcclType::kBf16:
      return AddEach<uint16_t>(sum, next, count, [](uint16_t a, uint16_t b) {
        return Bf16Of(FloatOfBf16(a) + FloatOfBf16(b));
      });
    case NcclType::kFp16:
      return AddEach<uint16_t>(sum, next, count, [](uint16_t a, uint16_t b) {
        return Fp16Of(FloatOfFp16(a) + FloatOfFp16(b));
      });
    case NcclType::kByte:
      return;
  }
}

}  // namespace gemini::trainer
