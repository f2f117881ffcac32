// SPDX-License-Identifier: Apache-2.0
// What 64 ranks send, by the functions that the tests of 2 to 8 ranks count by
// (tests/trainer/parallel/*_bytes_test.cc), beside what was published.
#include "policies/mesh/tensor_costs.h"

#include <functional>

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

using enum TensorMode;

TensorGrid MakeGrid(TensorMode mode, int64_t num_ranks, int64_t depth = 1) {
  return *TensorGrid::Make(mode, num_ranks, depth);
}
const TensorGrid k1dOf64 = MakeGrid(k1d, 64);
const TensorGrid k2dOf64 = MakeGrid(k2d, 64);
const TensorGrid k2Point5dOf64 = MakeGrid(k2Point5d, 64, 4);
const TensorGrid k3dOf64 = MakeGrid(k3d, 64);

// The bandwidth column in Colossal-AI's pages on 1d to 3d tensor parallelism, which is that of
// operands of size 1.
TEST(TensorCostsTest, OperandsOfSizeOneCostWhatColossalAiStates) {
  constexpr Product kInto = {1, 1, 1};
  constexpr Product kOutOf = {1, 1, 1, /*leads_out=*/true};
  for (const int64_t side : {1, 2, 4, 8}) {
    const double q = static_cast<double>(side);
    for (const Product& product : {kInto, kOutOf}) {
      EXPECT_DOUBLE_EQ(ProductCosts(MakeGrid(k1d, side), product).total(), 2 * (q - 1) / q);
    }
    // Those of 2d and 2.5d are q times what one rank sends for a gather, as if each of q broadcasts
    // sent its block q - 1 times.
    EXPECT_DOUBLE_EQ(q * ProductCosts(MakeGrid(k2d, side * side), kInto).total(), 6 * (q - 1) / q);
    for (const int64_t depth : {1, 2, 4}) {
      const double d = static_cast<double>(depth);
      const TensorCosts costs =
          ProductCosts(MakeGrid(k2Point5d, side * side * depth, depth), kInto);
      // They leave out the gradients' sum over depth.
      EXPECT_DOUBLE_EQ(q * (costs.total() - costs.replicas), 3 * (q - 1) * (d + 1) / (d * q));
      EXPECT_DOUBLE_EQ(costs.replicas, 2 * (d - 1) / (d * q * q));
    }
    // They leave out that backward gathers the input and the matrix again, a third of each.
    const TensorCosts costs = ProductCosts(MakeGrid(k3d, side * side * side), kInto);
    EXPECT_DOUBLE_EQ(costs.total() - (costs.input + costs.matrix) / 3, 6 * (q - 1) / (q * q * q));
  }
}

// In squares of the width, which is 1 here.
TEST(TensorCostsTest, ABlockOf64RanksSendsWhatItsModeSays) {
  struct Row {
    double tokens, line, square, squares, cube;
  };
  for (const Row& row :
       {Row{0.25, 1.969, 4.512, 8.121, 2.145}, Row{1, 7.875, 6.234, 8.859, 3.516},
        Row{4, 31.5, 13.125, 11.813, 9.0}, Row{16, 126.0, 40.688, 23.625, 30.938}}) {
    EXPECT_NEAR(BlockElements(k1dOf64, row.tokens, 1), row.line, 0.001);
    EXPECT_NEAR(BlockElements(k2dOf64, row.tokens, 1), row.square, 0.001);
    EXPECT_NEAR(BlockElements(k2Point5dOf64, row.tokens, 1), row.squares, 0.001);
    EXPECT_NEAR(BlockElements(k3dOf64, row.tokens, 1), row.cube, 0.001);
  }
}

// Returns from how many widths of tokens on `later` sends less than `sooner`, which sends less
// before. Both grow linearly.
double TokensFromWhichLess(const TensorGrid& later, const TensorGrid& sooner) {
  const auto less = [&](double tokens) {
    return BlockElements(later, tokens, 1) < BlockElements(sooner, tokens, 1);
  };
  double low = 0, high = 64;
  EXPECT_FALSE(less(low));
  EXPECT_TRUE(less(high));
  while (high - low > 1e-6) {
    const double middle = (low + high) / 2;
    (less(middle) ? high : low) = middle;
  }
  return high;
}

TEST(TensorCostsTest, EachModeOf64RanksSendsLeastInARangeOfTokens) {
  EXPECT_NEAR(TokensFromWhichLess(k3dOf64, k1dOf64), 0.279, 0.001);
  EXPECT_NEAR(TokensFromWhichLess(k2dOf64, k1dOf64), 0.706, 0.001);
  EXPECT_NEAR(TokensFromWhichLess(k2Point5dOf64, k1dOf64), 1.143, 0.001);
  EXPECT_NEAR(TokensFromWhichLess(k2Point5dOf64, k2dOf64), 3.0, 0.001);
  EXPECT_NEAR(TokensFromWhichLess(k2Point5dOf64, k3dOf64), 7.333, 0.001);
  // 3d sends less than 2d, however many tokens there are: by its matrices and by its states.
  for (const double tokens : {0.0, 1.0, 1e6}) {
    EXPECT_LT(BlockElements(k3dOf64, tokens, 1), BlockElements(k2dOf64, tokens, 1)) << tokens;
  }
}

TEST(TensorCostsTest, ALineSendsAMultipleOfItsHiddenStates) {
  constexpr double kTokens = 96, kWidth = 64;
  const double unit = kTokens * kWidth * 3 / 4;  // T h (t - 1)/t
  const auto sends = [](int64_t forwards, bool divides_sequences) {
    return BlockElements(MakeGrid(k1d, 4), kTokens, kWidth, {forwards, divides_sequences});
  };
  EXPECT_DOUBLE_EQ(sends(1, false), 8 * unit);
  EXPECT_DOUBLE_EQ(sends(2, false), 12 * unit);
  EXPECT_DOUBLE_EQ(sends(1, true), 10 * unit);
  EXPECT_DOUBLE_EQ(sends(2, true), 14 * unit);
}

TEST(TensorCostsTest, RanksOfASequenceSendTheirTokensOrAllKeys) {
  const double tokens = 96, width = 64;
  const UlyssesCosts ulysses = UlyssesBlockCosts(4, tokens, width, width);
  EXPECT_DOUBLE_EQ(ulysses.in + ulysses.out, 2 * 4 * tokens * width / 4 * 3 / 4);
  EXPECT_DOUBLE_EQ(UlyssesBlockCosts(4, tokens, width, width / 2, 2).in,
                   3 * 2 * tokens * width / 4 * 3 / 4);
  const RingCosts ring = RingBlockCosts(4, tokens, width);
  EXPECT_DOUBLE_EQ(ring.keys + ring.gradients, 6 * tokens * width / 4 * 3 + 2 * tokens * width / 4);
  EXPECT_DOUBLE_EQ(RingBlockCosts(4, tokens, width, 2).keys, ring.keys * 3 / 2);
}

TEST(TensorCostsTest, OneRankSendsNothing) {
  for (const TensorMode mode : {k1d, k2d, k2Point5d, k3d}) {
    EXPECT_EQ(BlockElements(MakeGrid(mode, 1), 96, 64, {2}), 0) << TensorModeName(mode);
  }
}

}  // namespace
}  // namespace gemini::policies
