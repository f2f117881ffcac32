// SPDX-License-Identifier: Apache-2.0
// The AdamW update of a run of fp32 elements, out of place: one specified arithmetic, the same bits
// whatever the machine and however the elements are split into calls.
// Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101),
// algorithm
//         2, with bias correction as in Kingma and Ba (arXiv:1412.6980), section 2.
// Arithmetic: fp32, each step one correctly rounded operation or an explicit fma, in this order:
//         g = gradient * gradient_scale
//         m' = fma(beta1, m, (1 - beta1) * g)          v' = fma(beta2, v, (1 - beta2) * (g * g))
//         d = sqrt(v') / sqrt(1 - beta2^t) + epsilon
//         p' = fma(-lr / (1 - beta1^t), m' / d, p * (1 - lr * wd))
//         Scalars are computed in double and rounded to fp32 once a call.
#pragma once
#include <array>
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

// The instruction sets that the update is compiled for. AdamWUpdate takes the widest that this
// processor has; all give the same bits.
enum class AdamWPath : uint8_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };
inline constexpr std::array<AdamWPath, 3> kAllAdamWPaths = {AdamWPath::kPortable, AdamWPath::kAvx2,
                                                            AdamWPath::kAvx512};

// Returns whether this processor, and this build, have the path.
bool AdamWPathAvailable(AdamWPath path);

// As AdamWUpdate, through `path`, which must be available.
void AdamWUpdateThrough(AdamWPath path, const AdamWSettings& settings, const AdamWBuffers& buffers,
                        int64_t count);

}  // namespace gemini::client
