// SPDX-License-Identifier: Apache-2.0
// Computes the learning rate of each step, as the schedules of transformers do: with warm-up over W
// steps, step s (from 0) has peak * s / W; so the first step of a warm-up has 0. Source:
// transformers.optimization, get_{constant,linear,cosine}_schedule_with_warmup.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

class LearningRate {
 public:
  enum class Schedule : uint8_t { kConstant, kLinear, kCosine };
  // "constant", "linear" or "cosine"; INVALID_ARGUMENT: another.
  static absl::StatusOr<Schedule> ParseSchedule(absl::string_view name);

  LearningRate(Schedule schedule, double peak, int64_t warmup_steps, int64_t num_steps)
      : schedule_(schedule), peak_(peak), warmup_steps_(warmup_steps), num_steps_(num_steps) {}

  // Of step `step`, from 0. Steps past num_steps have the rate of the schedule's end.
  double At(int64_t step) const;

 private:
  Schedule schedule_;
  double peak_;
  int64_t warmup_steps_;
  int64_t num_steps_;
};

}  // namespace gemini::trainer
