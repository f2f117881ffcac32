// SPDX-License-Identifier: Apache-2.0
// Dropout on a real GPU has the bits of the CPU.
#include <memory>

#include "client/torch/device/gpu_device.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/models/counter_dropout.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

class CounterDropoutCudaTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_OK_AND_ASSIGN(gpu_, client::hooks::OpenGpu(0)); }
  static void TearDownTestSuite() { gpu_.reset(); }

  static inline std::shared_ptr<client::hooks::SessionDevice> gpu_;
};

TEST_F(CounterDropoutCudaTest, ElementsAreThoseOfTheCpu) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    for (const int64_t count : {1, 3, 4, 1025, 3'000'001}) {
      const DropoutMask mask = {.probability = 0.3, .key = 0x8000000000000000 + count};
      const Tensor x = torch::randn({count}).to(type);
      EXPECT_TRUE(torch::equal(DropOut(x.to(gpu_->device()), mask).cpu(), DropOut(x, mask)));
    }
  }
}

TEST_F(CounterDropoutCudaTest, FactorsOfABoxAreThoseOfTheCpu) {
  const DropoutMask mask = {.probability = 0.1, .key = 9};
  const MaskBox box = {.first = 5 + (int64_t{1} << 40),
                       .planes = 12,
                       .plane_stride = 1 << 20,
                       .rows = 128,
                       .row_stride = 1 << 10,
                       .row_size = 777};
  const Tensor expected = torch::empty({12, 128, 777});
  FillFactors(mask, box, expected);
  const Tensor found = torch::empty({12, 128, 777}, torch::device(gpu_->device()));
  FillFactors(mask, box, found);
  EXPECT_TRUE(torch::equal(found.cpu(), expected));
}

}  // namespace
}  // namespace gemini::trainer
