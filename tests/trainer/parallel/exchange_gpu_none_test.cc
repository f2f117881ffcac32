// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA says where ranks are to exchange between GPUs.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "trainer/parallel/exchange_gpu.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ExchangeGpuNoneTest, ABuildWithoutCudaNamesTheGpuAndWhatToConfigure) {
  EXPECT_THAT(MakeGpuExchange(3), StatusIs(absl::StatusCode::kUnimplemented,
                                           AllOf(HasSubstr("cuda:3: this build has no CUDA"),
                                                 HasSubstr("-DGEMINI_WITH_CUDA=ON"))));
}

}  // namespace
}  // namespace gemini::trainer
