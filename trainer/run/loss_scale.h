// SPDX-License-Identifier: Apache-2.0
// Maintains the factor of the loss that keeps gradients of fp16 from vanishing: it is doubled after
// so many steps in a row without an overflow, halved at each overflow, whose step is not taken.
// Source: Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), section 3.2, with the
//         constants of torch.amp.GradScaler.
#pragma once
#include <cstdint>

namespace gemini::trainer {

struct LossScale {
  static constexpr double kFirst = 65536;
  static constexpr double kLargest = 16777216;  // 2^24: fp16 overflows long before.
  static constexpr int64_t kGrowthSteps = 2000;

  double value = kFirst;    // A power of two, >= 1: scaling loses no bit.
  int64_t steps_since = 0;  // Taken since it last changed.
  bool operator==(const LossScale&) const = default;

  // After a step that was taken, or skipped for an overflow. Returns whether another try may go
  // better: false for an overflow at a scale of 1, where the values themselves are too large.
  bool After(bool overflowed) {
    if (overflowed) {
      const bool may_help = value > 1;
      *this = {.value = may_help ? value / 2 : 1, .steps_since = 0};
      return may_help;
    }
    if (++steps_since >= kGrowthSteps) {
      *this = {.value = value < kLargest ? value * 2 : value, .steps_since = 0};
    }
    return true;
  }
};

}  // namespace gemini::trainer
