// SPDX-License-Identifier: Apache-2.0
// How far the fp32 arithmetic of the updates is from the formulas in double, over 1,000 steps.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "client/kernels/trust_ratio.h"
#include "client/kernels/update_kernel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::client {
namespace {

constexpr int64_t kSteps = 1'000;
constexpr int64_t kCount = 2'000;

UpdateSettings SettingsOf(OptimizerKind kind) {
  return {.kind = kind,
          .learning_rate = kind == OptimizerKind::kLars ? 0.5 : 1e-3,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .epsilon = 1e-8,
          .weight_decay = 0.01,
          .momentum = 0.9,
          .trust_coefficient = 0.02,
          .gradient_scale = 0.37};
}

// Gradients of one step: of elements that differ in size by decades, with noise and a mean.
std::vector<float> Gradients(int64_t step) {
  std::mt19937_64 random(static_cast<uint64_t>(step));
  std::normal_distribution<float> normal;
  std::vector<float> grad(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const float size = std::pow(10.0f, -static_cast<float>(i % 40) / 10);
    grad[i] = size * (normal(random) + 0.3f * std::sin(static_cast<float>(i)));
  }
  return grad;
}

std::vector<float> FirstParams() {
  std::mt19937_64 random(/*seed=*/77);
  std::normal_distribution<float> normal;
  std::vector<float> param(kCount);
  for (float& value : param) value = normal(random) * 0.02f;
  return param;
}

template <typename T>
struct State {
  std::vector<T> p, m, v;
  State() : m(kCount, 0), v(kCount, 0) {
    const std::vector<float> first = FirstParams();
    p.assign(first.begin(), first.end());
  }
};

double NormOfAll(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

// Root of the summed squares of the difference, by that of the reference's way from the first
// values.
template <typename T>
double ErrorOf(const std::vector<T>& values, const State<double>& reference) {
  const std::vector<float> first = FirstParams();
  double difference = 0, way = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    difference += std::pow(double{values[i]} - reference.p[i], 2);
    way += std::pow(double{first[i]} - reference.p[i], 2);
  }
  return std::sqrt(difference / way);
}

// The published formulas, in double.
void StepInDouble(const UpdateSettings& s, const std::vector<float>& grad, State<double>& x) {
  const double t = static_cast<double>(s.step);
  const double c1 = 1 - std::pow(s.beta1, t);
  const double c2 = 1 - std::pow(s.beta2, t);
  std::vector<double> direction(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    double& p = x.p[i];
    double& m = x.m[i];
    double& v = x.v[i];
    const double g = grad[i] * s.gradient_scale;
    const double decayed = g + s.weight_decay * p;
    const auto adam = [&](double gradient) {
      m = s.beta1 * m + (1 - s.beta1) * gradient;
      v = s.beta2 * v + (1 - s.beta2) * gradient * gradient;
      return m / c1 / (std::sqrt(v / c2) + s.epsilon);
    };
    switch (s.kind) {
      case OptimizerKind::kAdamW:
        p = p - s.learning_rate * s.weight_decay * p - s.learning_rate * adam(g);
        break;
      case OptimizerKind::kAdam:
        p -= s.learning_rate * adam(decayed);
        break;
      case OptimizerKind::kSgd:
        m = s.step == 1 ? decayed : s.momentum * m + decayed;
        p -= s.learning_rate * m;
        break;
      case OptimizerKind::kLamb:
        direction[i] = adam(g) + s.weight_decay * p;
        break;
      case OptimizerKind::kLars:
        direction[i] = g;
        break;
    }
  }
  if (!IsLayerWise(s.kind)) return;
  const double param_norm = NormOfAll(x.p);
  const double direction_norm = NormOfAll(direction);
  for (int64_t i = 0; i < kCount; ++i) {
    if (s.kind == OptimizerKind::kLamb) {
      x.p[i] -= s.learning_rate * param_norm / direction_norm * direction[i];
    } else {
      const double rate = s.learning_rate * s.trust_coefficient * param_norm /
                          (direction_norm + s.weight_decay * param_norm);
      x.m[i] = s.momentum * x.m[i] + rate * (direction[i] + s.weight_decay * x.p[i]);
      x.p[i] -= x.m[i];
    }
  }
}

void StepOfKernel(UpdateSettings settings, const std::vector<float>& grad, State<float>& x) {
  const UpdateStreams streams = {.param = x.p.data(),
                                 .grad = grad.data(),
                                 .exp_avg = x.m.data(),
                                 .exp_avg_sq = x.v.data(),
                                 .new_param = x.p.data(),
                                 .new_exp_avg = x.m.data(),
                                 .new_exp_avg_sq = x.v.data()};
  if (IsLayerWise(settings.kind)) {
    TrustSquares squares;
    AppendTrustSquares(settings, streams, kCount, squares);
    settings.trust_ratio = TrustRatio(settings, NormOf(squares.param), NormOf(squares.direction));
  }
  UpdateElements(settings, streams, kCount);
}

// torch.optim.AdamW's operations on fp32 tensors, in its order: mul_, lerp_, mul_ and addcmul_,
// sqrt, div, add_, addcdiv_. This file is compiled without contraction.
void StepOfTorch(const UpdateSettings& s, const std::vector<float>& grad, State<float>& x) {
  const auto f = [](double value) { return static_cast<float>(value); };
  const double t = static_cast<double>(s.step);
  const float step_size = f(s.learning_rate / (1 - std::pow(s.beta1, t)));
  const float correction2_sqrt = f(std::sqrt(1 - std::pow(s.beta2, t)));
  for (int64_t i = 0; i < kCount; ++i) {
    const float g = grad[i] * f(s.gradient_scale);
    x.p[i] *= f(1 - s.learning_rate * s.weight_decay);
    x.m[i] = x.m[i] + f(1 - s.beta1) * (g - x.m[i]);
    x.v[i] = x.v[i] * f(s.beta2) + f(1 - s.beta2) * g * g;
    const float denominator = std::sqrt(x.v[i]) / correction2_sqrt + f(s.epsilon);
    x.p[i] = x.p[i] + -step_size * x.m[i] / denominator;
  }
}

class UpdateNumericsTest : public ::testing::TestWithParam<OptimizerKind> {};

INSTANTIATE_TEST_SUITE_P(All, UpdateNumericsTest, ::testing::ValuesIn(kAllOptimizerKinds));

TEST_P(UpdateNumericsTest, FollowsTheFormulaInDoubleOverAThousandSteps) {
  State<float> kernel;
  State<double> reference;
  UpdateSettings settings = SettingsOf(GetParam());
  for (settings.step = 1; settings.step <= kSteps; ++settings.step) {
    const std::vector<float> grad = Gradients(settings.step);
    StepOfKernel(settings, grad, kernel);
    StepInDouble(settings, grad, reference);
  }
  const double error = ErrorOf(kernel.p, reference);
  RecordProperty("error", std::to_string(error * 1e9) + "e-9");
  // Roundings of values are independent: the root of some 10,000 of 2^-24. That of a constant, as
  // AdamW's 1 - lr * wd, is the same at each step: at most 1,000 of 2^-25, of which this is half.
  EXPECT_LT(error, 250 * 0x1p-24);
}

TEST(UpdateNumericsAdamWTest, IsNoWorseThanTorchInFp32) {
  State<float> kernel, torch;
  State<double> reference;
  UpdateSettings settings = SettingsOf(OptimizerKind::kAdamW);
  for (settings.step = 1; settings.step <= kSteps; ++settings.step) {
    const std::vector<float> grad = Gradients(settings.step);
    StepOfKernel(settings, grad, kernel);
    StepOfTorch(settings, grad, torch);
    StepInDouble(settings, grad, reference);
  }
  const double of_kernel = ErrorOf(kernel.p, reference);
  const double of_torch = ErrorOf(torch.p, reference);
  RecordProperty("kernel", std::to_string(of_kernel * 1e9) + "e-9");
  RecordProperty("torch", std::to_string(of_torch * 1e9) + "e-9");
  EXPECT_LE(of_kernel, of_torch);
  EXPECT_GT(of_kernel, 0);
}

}  // namespace
}  // namespace gemini::client
