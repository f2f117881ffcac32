// SPDX-License-Identifier: Apache-2.0
// Lists the optimizers that updates support. Their formulas are in client/kernels/update_rules.h.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace gemini {

enum class OptimizerKind : uint8_t { kAdamW = 0, kAdam = 1, kSgd = 2, kLamb = 3, kLars = 4 };
inline constexpr int kNumOptimizerKinds = 5;
inline constexpr std::array<OptimizerKind, kNumOptimizerKinds> kAllOptimizerKinds = {
    OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kLamb,
    OptimizerKind::kLars};
inline constexpr std::array<absl::string_view, kNumOptimizerKinds> kOptimizerKindNames = {
    "adamw", "adam", "sgd", "lamb", "lars"};

// Returns whether the optimizer has a second moment (exp_avg_sq). Every kind has a first one:
// exp_avg, or the momentum buffer.
constexpr bool HasSecondMoment(OptimizerKind kind) {
  return kind != OptimizerKind::kSgd && kind != OptimizerKind::kLars;
}

// Returns whether an update scales each tensor by a ratio of norms over the whole tensor.
constexpr bool IsLayerWise(OptimizerKind kind) {
  return kind == OptimizerKind::kLamb || kind == OptimizerKind::kLars;
}

// Returns "adamw", "adam", "sgd", "lamb" or "lars".
constexpr absl::string_view OptimizerKindName(OptimizerKind kind) {
  return kOptimizerKindNames[static_cast<int>(kind)];
}

// Returns the kind that has exactly this name, as listed above, and no value for any other text.
constexpr std::optional<OptimizerKind> OptimizerKindOf(absl::string_view name) {
  for (const OptimizerKind kind : kAllOptimizerKinds) {
    if (OptimizerKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

}  // namespace gemini
