// SPDX-License-Identifier: Apache-2.0
// The arithmetic is tested in update_kernel_test.cc.
#include "client/adamw.h"

#include <vector>

#include "client/update_kernel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::client {
namespace {

TEST(AdamWTest, IsTheUpdateOfFp32StreamsWithEverySetting) {
  constexpr int64_t kCount = 100;
  std::vector<float> param(kCount), grad(kCount), exp_avg(kCount), exp_avg_sq(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const float x = static_cast<float>(i);
    param[i] = x - 50;
    grad[i] = 0.1f * x;
    exp_avg[i] = 1 - x;
    exp_avg_sq[i] = x * x;
  }
  std::vector<float> p(kCount), m(kCount), v(kCount);
  AdamWUpdate(
      {.learning_rate = 3e-4,
       .beta1 = 0.8,
       .beta2 = 0.95,
       .epsilon = 1e-6,
       .weight_decay = 0.2,
       .step = 7,
       .gradient_scale = 0.37},
      {param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), p.data(), m.data(), v.data()},
      kCount);
  UpdateElements({.kind = OptimizerKind::kAdamW,
                  .learning_rate = 3e-4,
                  .beta1 = 0.8,
                  .beta2 = 0.95,
                  .epsilon = 1e-6,
                  .weight_decay = 0.2,
                  .step = 7,
                  .gradient_scale = 0.37},
                 {.param = param.data(),
                  .grad = grad.data(),
                  .exp_avg = exp_avg.data(),
                  .exp_avg_sq = exp_avg_sq.data(),
                  .new_param = param.data(),
                  .new_exp_avg = exp_avg.data(),
                  .new_exp_avg_sq = exp_avg_sq.data()},
                 kCount);
  EXPECT_EQ(p, param);
  EXPECT_EQ(m, exp_avg);
  EXPECT_EQ(v, exp_avg_sq);
}

}  // namespace
}  // namespace gemini::client
