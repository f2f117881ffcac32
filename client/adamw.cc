// SPDX-License-Identifier: Apache-2.0
#include "client/adamw.h"

#include "client/update_kernel.h"

namespace gemini::client {

void AdamWUpdate(const AdamWSettings& settings, const AdamWBuffers& buffers, int64_t count) {
  UpdateElements({.kind = OptimizerKind::kAdamW,
                  .learning_rate = settings.learning_rate,
                  .beta1 = settings.beta1,
                  .beta2 = settings.beta2,
                  .epsilon = settings.epsilon,
                  .weight_decay = settings.weight_decay,
                  .step = settings.step,
                  .gradient_scale = settings.gradient_scale},
                 {.param = buffers.param,
                  .grad = buffers.grad,
                  .exp_avg = buffers.exp_avg,
                  .exp_avg_sq = buffers.exp_avg_sq,
                  .new_param = buffers.new_param,
                  .new_exp_avg = buffers.new_exp_avg,
                  .new_exp_avg_sq = buffers.new_exp_avg_sq},
                 count);
}

}  // namespace gemini::client
