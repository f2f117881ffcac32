// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/exact_sum.h"

#include <algorithm>
#include <array>

#include "gemini/half_float.h"

namespace gemini::trainer {
namespace {

// So many are added at a time, which the first cache holds.
constexpr int64_t kRun = 2048;

template <typename Stored, typename Sum, typename Widen, typename Narrow>
void Fold(const std::byte* parts, int64_t num_parts, int64_t elements, std::byte* out, Widen widen,
          Narrow narrow) {
  const auto* const from = reinterpret_cast<const Stored*>(parts);
  auto* const to = reinterpret_cast<Stored*>(out);
  std::array<Sum, kRun> sums;
  for (int64_t begin = 0; begin < elements; begin += kRun) {
    const int64_t count = std::min(kRun, elements - begin);
    for (int64_t i = 0; i < count; ++i) sums[i] = widen(from[begin + i]);
    for (int64_t part = 1; part < num_parts; ++part) {
      const Stored* const next = from + part * elements + begin;
      for (int64_t i = 0; i < count; ++i) sums[i] += widen(next[i]);
    }
    for (int64_t i = 0; i < count; ++i) to[begin + i] = narrow(sums[i]);
  }
}

}  // namespace

void FoldSum(SumType type, const std::byte* parts, int64_t num_parts, int64_t elements,
             std::byte* sum) {
  const auto same = [](auto value) { return value; };
  switch (type) {
    case SumType::kFp64:
      return Fold<double, double>(parts, num_parts, elements, sum, same, same);
    case SumType::kFp32:
      return Fold<float, float>(parts, num_parts, elements, sum, same, same);
    case SumType::kBf16:
      return Fold<uint16_t, float>(parts, num_parts, elements, sum, FloatOfBf16, Bf16Of);
    case SumType::kFp16:
      return Fold<uint16_t, float>(parts, num_parts, elements, sum, FloatOfFp16, Fp16Of);
  }
}

}  // namespace gemini::trainer
