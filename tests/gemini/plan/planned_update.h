// SPDX-License-Identifier: Apache-2.0
// An update on DEVICE of an fp32 space with two moments, by the ranges that it has.
#pragma once
#include <cstdint>

#include "gemini/plan/plan.h"

namespace gemini {

inline PlannedUpdate Fp32Update(int32_t param, int32_t exp_avg, int32_t exp_avg_sq, int32_t grad) {
  PlannedUpdate update;
  update.ranges[ChunkKind::kParam] = param;
  update.ranges[ChunkKind::kExpAvg] = exp_avg;
  update.ranges[ChunkKind::kExpAvgSq] = exp_avg_sq;
  update.ranges[ChunkKind::kGrad] = grad;
  return update;
}

}  // namespace gemini
