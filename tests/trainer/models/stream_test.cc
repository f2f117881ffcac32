// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/stream.h"

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

// All that a stream may have.
std::vector<Stream> Streams() {
  const Tensor hidden = torch::ones({2, 3}), pair = torch::ones({4}), sums = torch::ones({5});
  return {{.hidden = hidden},
          {.hidden = hidden, .pair = pair},
          {.hidden = hidden, .router_sums = sums},
          {.hidden = hidden, .pair = pair, .router_sums = sums}};
}

void ExpectSame(const Tensor& one, const Tensor& other) { EXPECT_TRUE(one.is_same(other)); }

TEST(StreamTest, ItsTensorsMakeItAgain) {
  for (const Stream& stream : Streams()) {
    const std::vector<Tensor> tensors = TensorsOf(stream);
    EXPECT_EQ(tensors.size(), 1u + stream.pair.defined() + stream.router_sums.defined());
    const Stream again = StreamOf(tensors, stream.pair.defined());
    ExpectSame(again.hidden, stream.hidden);
    ExpectSame(again.pair, stream.pair);
    ExpectSame(again.router_sums, stream.router_sums);
  }
}

TEST(StreamTest, LeavesGetGradientsOfTheirOwn) {
  for (const Stream& stream : Streams()) {
    const Stream leaves = LeavesOf(stream);
    Tensor sum = torch::zeros({});
    double factor = 1;
    for (const Tensor& leaf : TensorsOf(leaves)) {
      EXPECT_TRUE(leaf.is_leaf());
      sum = sum + (leaf * ++factor).sum();
    }
    sum.backward();
    factor = 1;
    for (const Tensor& gradient : TensorsOf(GradientsOf(leaves))) {
      EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, ++factor)));
    }
    EXPECT_EQ(factor, 1 + static_cast<double>(TensorsOf(stream).size()));
    EXPECT_FALSE(stream.hidden.requires_grad());
    EXPECT_FALSE(Detached(leaves).hidden.requires_grad());
  }
}

}  // namespace
}  // namespace gemini::trainer
