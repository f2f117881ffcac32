// SPDX-License-Identifier: Apache-2.0
// The AdamW update of a run of fp32 elements: the one of client/update_kernel.h, whose arithmetic and bits
// these are, for callers whose streams are all fp32.
#pragma once
#include <cstdint>

namespace gemini::client {

struct AdamWSettings {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  int64_t step = 1;           // t: 1 at the first update of the tensor.
  double gradient_scale = 1;  // Clip coefficient; 1 without clipping.
};

// Addresses of `count` fp32 elements each. exp_avg and exp_avg_sq may be null: zeros (first
// update). Outputs may be the inputs themselves (in place), and overlap in no other way.
struct AdamWBuffers {
  const float* param;
  const float* grad;
  const float* exp_avg;
  const float* exp_avg_sq;
  float* new_param;
  float* new_exp_avg;
  float* new_exp_avg_sq;
};

// Updates `count` elements on the calling thread. Never fails; NaN and infinity pass through.
void AdamWUpdate(const AdamWSettings& settings, const AdamWBuffers& buffers, int64_t count);

}  // namespace gemini::client
