// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/update_kernel.h"

#include <cmath>

#include "client/kernels/default_rounding.h"
#include "client/kernels/update_loops.h"
#include "client/kernels/update_scalars.h"
#include "gemini/system/check.h"

namespace gemini::client {

UpdateScalars ScalarsOf(const UpdateSettings& settings) {
  const double step = static_cast<double>(settings.step);
  const auto f = [](double value) { return static_cast<float>(value); };
  // As fp32 has them, so that a beta and its complement add up to 1: with both rounded by
  // themselves, 0.999 makes v 1.3e-5 too large for ever, and the test's error of Adam is three
  // times as large.
  const double beta1 = f(settings.beta1);
  const double beta2 = f(settings.beta2);
  const double sqrt_correction2 = std::sqrt(1 - std::pow(beta2, step));
  const double correction = sqrt_correction2 / (1 - std::pow(beta1, step));
  return {
      .gradient_scale = f(settings.gradient_scale),
      .beta1 = f(beta1),
      .one_minus_beta1 = f(1 - beta1),
      .beta2 = f(beta2),
      .one_minus_beta2 = f(1 - beta2),
      .corrected_epsilon = f(settings.epsilon * sqrt_correction2),
      .correction = f(correction),
      .minus_step_size = f(-settings.learning_rate * correction),
      .decay = f(1 - settings.learning_rate * settings.weight_decay),
      .weight_decay = f(settings.weight_decay),
      .momentum = f(settings.momentum),
      .one_minus_dampening = f(1 - settings.dampening),
      .minus_learning_rate = f(-settings.learning_rate),
      .layer_rate = f(settings.learning_rate * settings.trust_ratio),
      .is_first = settings.step == 1,
      .nesterov = settings.nesterov,
  };
}

void UpdateElements(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count) {
  UpdateElementsThrough(WidestVectorPath(), settings, streams, count);
}

void UpdateElementsThrough(VectorPath path, const UpdateSettings& settings,
                           const UpdateStreams& streams, int64_t count) {
  const bool has_master = streams.param_type != ElementType::kFp32;
  GEMINI_CHECK(has_master == (streams.master != nullptr) || count == 0);
  GEMINI_CHECK(has_master == (streams.new_master != nullptr) || count == 0);
  UpdateStreams used = streams;
  if (!HasSecondMoment(settings.kind)) {
    used.exp_avg_sq = nullptr;
    used.new_exp_avg_sq = nullptr;
  }
  const DefaultRounding rounding;
  const UpdateLoops& loops = LoopsOf(path);
  loops.update(settings.kind, ScalarsOf(settings), used, StoresOf(used), count);
  loops.fence();
}

}  // namespace gemini::client
