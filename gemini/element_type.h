// SPDX-License-Identifier: Apache-2.0
// Defines the number formats of parameters and gradients.
#pragma once
#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gemini {

enum class ElementType : uint8_t { kFp32 = 0, kBf16 = 1, kFp16 = 2 };
inline constexpr int kNumElementTypes = 3;
inline constexpr std::array<ElementType, kNumElementTypes> kAllElementTypes = {
    ElementType::kFp32, ElementType::kBf16, ElementType::kFp16};

constexpr int64_t ElementBytes(ElementType type) { return type == ElementType::kFp32 ? 4 : 2; }

// Returns "fp32", "bf16" or "fp16".
constexpr absl::string_view ElementTypeName(ElementType type) {
  constexpr std::array<absl::string_view, kNumElementTypes> kNames = {"fp32", "bf16", "fp16"};
  return kNames[static_cast<int>(type)];
}

}  // namespace gemini
