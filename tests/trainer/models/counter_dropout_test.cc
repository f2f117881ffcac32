// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/counter_dropout.h"

#include <cmath>
#include <random>
#include <vector>

#include "ATen/Parallel.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr DropoutMask kMask = {.probability = 0.3, .key = 0x8000000000000007};

Tensor FactorsOf(const DropoutMask& mask, at::IntArrayRef sizes) {
  Tensor factors = torch::empty(sizes);
  FillFactors(mask, {.row_size = factors.numel()}, factors);
  return factors;
}

TEST(CounterDropoutTest, EachElementIsMultipliedByTheFactorOfItsPlace) {
  const Tensor x = torch::randn({7, 11, 13});
  const Tensor out = DropOut(x, kMask);
  EXPECT_TRUE(torch::equal(out, x * FactorsOf(kMask, x.sizes())));
  EXPECT_TRUE(torch::equal(out, DropOut(x, kMask)));
  EXPECT_FALSE(torch::equal(out, DropOut(x, {kMask.probability, kMask.key + 1})));
  // The shape is of no account, nor is how a tensor lies.
  EXPECT_TRUE(torch::equal(out, DropOut(x.view({77, 13}), kMask).view({7, 11, 13})));
  const Tensor turned = x.transpose(0, 2).contiguous().transpose(0, 2);
  EXPECT_TRUE(torch::equal(out, DropOut(turned, kMask)));
}

TEST(CounterDropoutTest, TheFactorsAreThoseOfTheQuads) {
  const Tensor factors = FactorsOf(kMask, {401});
  for (int64_t i = 0; i < 401; ++i) {
    EXPECT_EQ(factors[i].item<float>(), MaskFactors(kMask).Quad(i / 4)[i % 4]) << i;
  }
}

TEST(CounterDropoutTest, ItsShareIsDroppedAndTheMeanStays) {
  for (const double probability : {0.02, 0.5, 0.9}) {
    const Tensor out = DropOut(torch::ones({1'000'000}), {probability, 11});
    const double deviation = std::sqrt(probability * (1 - probability) / 1e6);
    EXPECT_NEAR((out == 0).to(torch::kFloat64).mean().item<double>(), probability, 5 * deviation);
    EXPECT_NEAR(out.to(torch::kFloat64).mean().item<double>(), 1,
                5 * deviation / (1 - probability));
  }
}

// Neighbours, and equal places of two masks, must not go together: by the share of pairs of which
// both are dropped.
TEST(CounterDropoutTest, DropsAreIndependent) {
  constexpr int64_t kCount = 1'000'000;
  const Tensor one = FactorsOf({0.5, 1}, {kCount}) == 0;
  const Tensor other = FactorsOf({0.5, 2}, {kCount}) == 0;
  const auto share = [](const Tensor& both) {
    return both.to(torch::kFloat64).mean().item<double>();
  };
  const double bound = 5 * std::sqrt(0.25 * 0.75 / kCount);
  EXPECT_NEAR(share(one & other), 0.25, bound);
  for (const int64_t distance : {1, 2, 3, 4, 8, 1024}) {
    EXPECT_NEAR(share(one.slice(0, distance) & one.slice(0, 0, kCount - distance)), 0.25, bound);
  }
}

TEST(CounterDropoutTest, ABoxHasTheFactorsThatItsElementsHaveInTheWhole) {
  std::mt19937 random(/*seed=*/3);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  const Tensor whole = FactorsOf(kMask, {5, 40, 50});
  for (int i = 0; i < 300; ++i) {
    const int64_t plane = below(5), row = below(40), key = below(50);
    const MaskBox box = {.first = (plane * 40 + row) * 50 + key,
                         .planes = 1 + below(5 - plane),
                         .plane_stride = 40 * 50,
                         .rows = 1 + below(40 - row),
                         .row_stride = 50,
                         .row_size = 1 + below(50 - key)};
    Tensor factors = torch::empty({box.planes, box.rows, box.row_size});
    FillFactors(kMask, box, factors);
    EXPECT_TRUE(torch::equal(
        factors,
        whole.narrow(0, plane, box.planes).narrow(1, row, box.rows).narrow(2, key, box.row_size)));
  }
}

// Of [7, 11, 13] the planes 2 to 5, and of each the rows from 3 on.
TEST(CounterDropoutTest, APartIsDroppedAsInTheWhole) {
  const Tensor whole = torch::randn({7, 11, 13});
  const auto part_of = [](const Tensor& x) { return x.slice(0, 2, 6).slice(1, 3); };
  const Tensor part = part_of(whole).contiguous().requires_grad_();
  const MaskBox box = {
      .first = 2 * 143 + 3 * 13, .planes = 4, .plane_stride = 143, .row_size = 8 * 13};
  const Tensor out = DropOut(part, kMask, box);
  EXPECT_TRUE(torch::equal(out, part_of(DropOut(whole, kMask))));
  out.sum().backward();
  EXPECT_TRUE(torch::equal(part.grad(), part_of(FactorsOf(kMask, whole.sizes()))));
}

TEST(CounterDropoutTest, ThreadsDoNotMatter) {
  const Tensor x = torch::randn({300, 1001});
  const int before = at::get_num_threads();
  std::vector<Tensor> outs;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    outs.push_back(DropOut(x, kMask));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(torch::equal(outs[0], outs[1]));
  EXPECT_TRUE(torch::equal(outs[0], outs[2]));
}

TEST(CounterDropoutTest, SixteenBitsAreRoundedOnce) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const Tensor x = torch::randn({1000}).to(type);
    const Tensor expected = (x.to(torch::kFloat32) * FactorsOf(kMask, {1000})).to(type);
    EXPECT_TRUE(torch::equal(DropOut(x, kMask), expected));
  }
}

TEST(CounterDropoutTest, TheGradientIsDroppedAlike) {
  const Tensor x = torch::randn({50, 20}).set_requires_grad(true);
  const Tensor weight = torch::randn({50, 20}).set_requires_grad(true);
  const Tensor sum = (DropOut(x, kMask) * weight).sum();
  const Tensor grad = torch::autograd::grad({sum}, {x}, {}, true, /*create_graph=*/true)[0];
  const Tensor factors = FactorsOf(kMask, {50, 20});
  EXPECT_TRUE(torch::equal(grad, weight * factors));
  // A second derivative, too.
  EXPECT_TRUE(torch::equal(torch::autograd::grad({grad.sum()}, {weight})[0], factors));
}

TEST(CounterDropoutTest, TheGraphDoesNotKeepTheInput) {
  Tensor x = torch::randn({1000}).set_requires_grad(true) * 2;
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(x.storage().unsafeGetStorageImpl()));
  const Tensor out = DropOut(x, kMask);
  x.reset();
  EXPECT_TRUE(memory.expired());
  out.sum().backward();
}

TEST(CounterDropoutTest, AMaskThatDropsNothingGivesTheTensorItself) {
  const Tensor x = torch::randn({3});
  EXPECT_TRUE(DropOut(x, {.probability = 0, .key = 5}).is_same(x));
}

TEST(CounterDropoutTest, NothingAndTheMetaDeviceWork) {
  EXPECT_EQ(DropOut(torch::empty({0, 4}), kMask).sizes(), (std::vector<int64_t>{0, 4}));
  const Tensor x = torch::empty({3, 4}, torch::device(torch::kMeta).dtype(torch::kBFloat16));
  const Tensor out = DropOut(x, kMask);
  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.sizes(), x.sizes());
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
}

TEST(CounterDropoutTest, WhatIsNoFloatOrNoBoxIsRefused) {
  EXPECT_THROW(DropOut(torch::ones({3}, torch::kInt64), kMask), c10::Error);
  EXPECT_THROW(FillFactors(kMask, {.row_size = 4}, torch::empty({3})), c10::Error);
  EXPECT_THROW(FillFactors(kMask, {.row_size = 4}, torch::empty({4}, torch::kFloat64)), c10::Error);
}

}  // namespace
}  // namespace gemini::trainer
