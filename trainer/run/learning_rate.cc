// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace gemini::trainer {

absl::StatusOr<LearningRate::Schedule> LearningRate::ParseSchedule(absl::string_view name) {
  if (name == "constant") return Schedule::kConstant;
  if (name == "linear") return Schedule::kLinear;
  if (name == "cosine") return Schedule::kCosine;
  return absl::InvalidArgumentError(
      absl::StrCat("schedule '", name, "' is none of constant, linear, cosine"));
}

double LearningRate::At(int64_t step) const {
  const auto s = static_cast<double>(step);
  const auto warmup = static_cast<double>(warmup_steps_);
  const auto all = static_cast<double>(num_steps_);
  if (step < warmup_steps_) return peak_ * (s / std::max(1.0, warmup));
  const double rest = std::max(1.0, all - warmup);
  switch (schedule_) {
    case Schedule::kConstant:
      return peak_;
    case Schedule::kLinear:
      return peak_ * std::max(0.0, (all - s) / rest);
    case Schedule::kCosine: {
      // Half a cosine, once: past its end it would rise again.
      const double progress = std::min(1.0, (s - warmup) / rest);
      return peak_ * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
    }
  }
  return peak_;
}

}  // namespace gemini::trainer
