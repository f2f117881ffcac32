// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/device_kernels_host.h"

#include <random>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

// Several parts of a team's, and a rest.
constexpr int64_t kCount = 100'003;

class DeviceKernelsHostTest : public ::testing::Test {
 protected:
  static std::vector<float> RandomValues(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(kCount));
    for (float& value : values) value = normal(random);
    return values;
  }

  WorkerTeam team_{3};
  DeviceKernelsHost kernels_{team_};
};

TEST_F(DeviceKernelsHostTest, SquaresOfRunsAreThoseOfOneAfterTheOther) {
  const std::vector<float> values = RandomValues(1);
  std::vector<GradientRun> runs;
  std::vector<double> expected;
  for (const int64_t count : {kCount, int64_t{1}, kNormBlockElements, kNormBlockElements + 1}) {
    runs.push_back({reinterpret_cast<const std::byte*>(values.data()), count});
    AppendBlockSquares(ElementType::kFp32, values.data(), count, expected);
  }
  EXPECT_THAT(kernels_.BlockSquaresOf(ElementType::kFp32, runs), IsOkAndHolds(expected));
  EXPECT_THAT(kernels_.BlockSquaresOf(ElementType::kFp32, {}), IsOkAndHolds(std::vector<double>()));
}

TEST_F(DeviceKernelsHostTest, AnUpdateInPlaceIsThatOfOneThread) {
  const std::vector<float> grad = RandomValues(2);
  std::vector<float> param = RandomValues(3), exp_avg = RandomValues(4);
  std::vector<float> expected = param, expected_avg = exp_avg;
  const auto streams = [&grad](std::vector<float>& p, std::vector<float>& m) {
    return UpdateStreams{.param = p.data(),
                         .grad = grad.data(),
                         .exp_avg = m.data(),
                         .new_param = p.data(),
                         .new_exp_avg = m.data()};
  };
  const UpdateSettings settings = {.kind = OptimizerKind::kSgd, .step = 3};
  kernels_.Update(settings, streams(param, exp_avg), kCount);
  ASSERT_OK(kernels_.Finish());
  UpdateElements(settings, streams(expected, expected_avg), kCount);
  EXPECT_EQ(param, expected);
  EXPECT_EQ(exp_avg, expected_avg);
}

}  // namespace
}  // namespace gemini::client
