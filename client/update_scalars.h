// SPDX-License-Identifier: Apache-2.0
// The fp32 scalars of an update: computed in double and rounded once a call.
#pragma once
#include "client/update_kernel.h"

namespace gemini::client {

// c1 = 1 - beta1^t, c2 = 1 - beta2^t, of the betas as rounded to fp32; 1 - beta is exact then.
struct UpdateScalars {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_correction2;  // sqrt(c2)
  float epsilon;
  float minus_step_size;      // -lr / c1
  float decay;                // 1 - lr * wd
  float weight_decay;         // wd
  float momentum;             // mu
  float minus_learning_rate;  // -lr
  float inverse_correction1;  // 1 / c1
  float layer_rate;           // lr * ratio
  bool is_first;              // t == 1
};

UpdateScalars ScalarsOf(const UpdateSettings& settings);

}  // namespace gemini::client
