// SPDX-License-Identifier: Apache-2.0
// Computes the fp32 scalars of an update, in double and rounded once for each call.
#pragma once
#include "client/kernels/update_kernel.h"

namespace gemini::client {

// c1 = 1 - beta1^t, c2 = 1 - beta2^t, of the betas as rounded to fp32; 1 - beta is exact then. The
// bias corrections are folded into the scalars (Kingma and Ba, arXiv:1412.6980, end of section 2),
// which saves a division for each element:
//   (m / c1) / (sqrt(v / c2) + epsilon) = (sqrt(c2) / c1) * m / (sqrt(v) + epsilon * sqrt(c2))
struct UpdateScalars {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float corrected_epsilon;    // epsilon * sqrt(c2)
  float correction;           // sqrt(c2) / c1
  float minus_step_size;      // -lr * sqrt(c2) / c1
  float decay;                // 1 - lr * wd
  float weight_decay;         // wd
  float momentum;             // mu
  float one_minus_dampening;  // 1 - tau
  float minus_learning_rate;  // -lr
  float layer_rate;           // lr * ratio
  bool is_first;              // t == 1
  bool nesterov;
};

// Returns the scalars for one step of a tensor.
UpdateScalars ScalarsOf(const UpdateSettings& settings);

}  // namespace gemini::client
