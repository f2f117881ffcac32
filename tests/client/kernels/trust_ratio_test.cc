// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/trust_ratio.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/update/update_memory.h"

namespace gemini::client {
namespace {

using ::testing::ElementsAreArray;

constexpr int64_t kCount = 3 * kNormBlockElements + 77;

using Formats = std::tuple<OptimizerKind, ElementType, ElementType>;

class TrustRatioTest : public ::testing::TestWithParam<Formats> {
 protected:
  UpdateSettings settings() const { return SettingsOf(std::get<0>(GetParam())); }
  UpdateMemory Memory(const std::vector<ElementBits>& values) const {
    return UpdateMemory(std::get<1>(GetParam()), std::get<2>(GetParam()), values);
  }
};

INSTANTIATE_TEST_SUITE_P(All, TrustRatioTest,
                         ::testing::Combine(::testing::Values(OptimizerKind::kLamb,
                                                              OptimizerKind::kLars),
                                            ::testing::ValuesIn(kAllElementTypes),
                                            ::testing::ValuesIn(kAllElementTypes)));

// The direction in fp32 as client/kernels/update_rules.h says; this file is compiled without
// contraction.
float Direction(const UpdateSettings& s, float p, float grad, float m, float v) {
  const auto f = [](double value) { return static_cast<float>(value); };
  const float g = grad * f(s.gradient_scale);
  if (s.kind == OptimizerKind::kLars) return g;
  const double t = static_cast<double>(s.step);
  const float beta1 = f(s.beta1);
  const float beta2 = f(s.beta2);
  m = std::fmaf(beta1, m, (1 - beta1) * g);
  v = std::fmaf(beta2, v, (1 - beta2) * (g * g));
  const double root2 = std::sqrt(1 - std::pow(double{beta2}, t));
  const float ratio = m / (std::sqrt(v) + f(s.epsilon * root2));
  const float correction = f(root2 / (1 - std::pow(double{beta1}, t)));
  return std::fmaf(correction, ratio, f(s.weight_decay) * p);
}

TEST_P(TrustRatioTest, SquaresAreThoseOfParameterAndDirectionInTheOrderOfTheNorm) {
  const std::vector<ElementBits> values = RandomElements(kCount, 1);
  UpdateMemory memory = Memory(values);
  TrustSquares squares;
  AppendTrustSquares(settings(), memory.OutOfPlace(), kCount, squares);
  std::vector<float> params, directions;
  for (int64_t i = 0; i < kCount; ++i) {
    params.push_back(memory.OldParam(i));
    directions.push_back(Direction(settings(), memory.OldParam(i), memory.Grad(i),
                                   std::bit_cast<float>(values[i].exp_avg),
                                   std::bit_cast<float>(values[i].exp_avg_sq)));
  }
  std::vector<double> expected_param, expected_direction;
  AppendBlockSquares(params, expected_param);
  AppendBlockSquares(directions, expected_direction);
  EXPECT_THAT(squares.param, ElementsAreArray(expected_param));
  EXPECT_THAT(squares.direction, ElementsAreArray(expected_direction));
}

TEST_P(TrustRatioTest, PiecesAndPathsChangeNoBit) {
  std::vector<ElementBits> values = SpecialElements();
  const std::vector<ElementBits> random = RandomElements(kCount, 2);
  values.insert(values.end(), random.begin(), random.end());
  UpdateMemory memory = Memory(values);
  TrustSquares expected;
  AppendTrustSquaresThrough(VectorPath::kPortable, settings(), memory.OutOfPlace(), memory.count(),
                            expected);
  const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
  };
  for (const VectorPath path : kAllVectorPaths) {
    if (!VectorPathAvailable(path)) continue;
    TrustSquares pieces;
    for (int64_t from = 0; from < memory.count();) {
      const int64_t count = std::min(memory.count() - from, 5 * kNormBlockElements);
      AppendTrustSquaresThrough(path, settings(), memory.OutOfPlace(from), count, pieces);
      from += count;
    }
    EXPECT_TRUE(same(pieces.param, expected.param)) << VectorPathName(path);
    EXPECT_TRUE(same(pieces.direction, expected.direction)) << VectorPathName(path);
  }
}

// With epsilon 0 the padding of the last step divides zero by zero.
TEST_P(TrustRatioTest, WhatIsBehindTheLastElementAddsNothing) {
  UpdateMemory memory = Memory(RandomElements(kNormBlockElements + 5, 3));
  UpdateSettings no_epsilon = settings();
  no_epsilon.epsilon = 0;
  TrustSquares squares;
  AppendTrustSquares(no_epsilon, memory.OutOfPlace(), memory.count(), squares);
  EXPECT_TRUE(std::isfinite(NormOf(squares.direction)));
}

TEST(TrustRatioFormulaTest, IsThatOfTheAlgorithmAndOneWhereANormIsZero) {
  const UpdateSettings lamb = SettingsOf(OptimizerKind::kLamb);
  UpdateSettings lars = SettingsOf(OptimizerKind::kLars);
  lars.trust_coefficient = 0.02;
  EXPECT_EQ(TrustRatio(lamb, 3, 2), 1.5);
  EXPECT_DOUBLE_EQ(TrustRatio(lars, 3, 2), 0.02 * 3 / (2 + 0.1 * 3));
  for (const UpdateSettings& settings : {lamb, lars}) {
    EXPECT_EQ(TrustRatio(settings, 0, 2), 1);
    EXPECT_EQ(TrustRatio(settings, 3, 0), 1);
  }
}

}  // namespace
}  // namespace gemini::client
