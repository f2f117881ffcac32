// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/zero_costs.h"

#include "gtest/gtest.h"

namespace gemini::policies {
namespace {

constexpr ParameterBytes kOfPaper = {.parameter = 2, .gradient = 2, .states = 12};
constexpr ParameterBytes kBf16 = {.parameter = 2, .gradient = 2, .states = 10};

// Figure 1 of the paper: 7.5 billion parameters, 64 ranks, GB a rank.
TEST(ZeroCostsTest, MemoryIsThatOfThePaper) {
  const auto gigabytes = [](int stage) { return 7.5 * ZeroBytesOfPaper(stage, 64, kOfPaper); };
  EXPECT_DOUBLE_EQ(gigabytes(0), 120);
  EXPECT_NEAR(gigabytes(1), 31.4, 0.05);
  EXPECT_NEAR(gigabytes(2), 16.6, 0.05);
  EXPECT_NEAR(gigabytes(3), 1.9, 0.05);
}

// The table in docs/parallel.md.
TEST(ZeroCostsTest, OursHoldsPartsBesideTheWhole) {
  for (const int64_t ranks : {2, 8}) {
    const double n = static_cast<double>(ranks);
    EXPECT_DOUBLE_EQ(ZeroBytes(0, ranks, kBf16), 14);
    EXPECT_DOUBLE_EQ(ZeroBytes(1, ranks, kBf16), 4 + 14 / n);
    EXPECT_DOUBLE_EQ(ZeroBytes(1, ranks, kBf16, {.adds_each = true}), 2 + 14 / n);
    EXPECT_DOUBLE_EQ(ZeroBytes(2, ranks, kBf16), 2 + 14 / n);
    EXPECT_DOUBLE_EQ(ZeroBytes(3, ranks, kBf16), 14 / n);
    EXPECT_DOUBLE_EQ(ZeroBytes(1, ranks, {}), 8 + 16 / n);
    EXPECT_DOUBLE_EQ(ZeroBytes(3, ranks, {}), 16 / n);
  }
}

TEST(ZeroCostsTest, StageThreeSendsHalfAsMuchAgain) {
  const double plain = ZeroElementsSent(0, 64, {});
  EXPECT_DOUBLE_EQ(plain, 2 * 63. / 64);
  EXPECT_DOUBLE_EQ(ZeroElementsSent(1, 64, {}), plain);
  EXPECT_DOUBLE_EQ(ZeroElementsSent(2, 64, {}), plain);
  EXPECT_DOUBLE_EQ(ZeroElementsSent(3, 64, {}), 1.5 * plain);
}

TEST(ZeroCostsTest, MicroBatchesAreSentForWhereTheyAreAddedUp) {
  const auto sent = [](int stage, bool adds_each, bool is_vertical = false) {
    return ZeroElementsSent(
               stage, 4, {.micro_batches = 6, .adds_each = adds_each, .is_vertical = is_vertical}) /
           (3. / 4);
  };
  EXPECT_DOUBLE_EQ(sent(0, false), 2);
  EXPECT_DOUBLE_EQ(sent(0, true), 2 * 6);
  EXPECT_DOUBLE_EQ(sent(1, false), 2);
  EXPECT_DOUBLE_EQ(sent(1, true), 6 + 1);
  EXPECT_DOUBLE_EQ(sent(2, false), 6 + 1);
  EXPECT_DOUBLE_EQ(sent(3, false), 3 * 6);
  EXPECT_DOUBLE_EQ(sent(3, false, /*is_vertical=*/true), 6 + 2);
  EXPECT_EQ(ZeroElementsSent(3, 1, {.micro_batches = 6}), 0);
}

}  // namespace
}  // namespace gemini::policies
