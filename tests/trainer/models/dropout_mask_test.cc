// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/dropout_mask.h"

#include <array>
#include <cstdint>
#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;

TEST(DropoutMaskTest, NothingIsDroppedWithoutADrawOrAProbability) {
  EXPECT_EQ(MaskOf(std::nullopt, 1, 0.5).probability, 0);
  EXPECT_EQ(MaskOf(DropoutDraw(), 1, 0).probability, 0);
}

// A run that goes on with a later build must draw the masks that it would have drawn.
TEST(DropoutMaskTest, TheKeyIsThePhiloxWordsOfAllNumbers) {
  EXPECT_EQ(MaskOf(DropoutDraw(), 0, 0.5).key, 0xe169c58d6627e8d5);  // Of a counter and a key of 0.
  const DropoutMask mask = MaskOf(DropoutDraw{.seed = 0x299f31d0a4093822,
                                              .step = int64_t{0x05a308d3243f6a88},
                                              .micro_batch = 0x13198a2e},
                                  0x03707344, 0.25);
  const std::array<uint32_t, 4> words =
      Philox({0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822);
  EXPECT_EQ(mask.key, words[0] | uint64_t{words[1]} << 32);
  EXPECT_EQ(mask.probability, 0.25);
}

TEST(DropoutMaskTest, EachNumberMakesAnotherKey) {
  std::set<uint64_t> keys;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63}) {
    for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{1} << 40}) {
      for (const int64_t micro_batch : {int64_t{0}, int64_t{1}, int64_t{0xffffffff}}) {
        for (const int64_t site : {0, 1, 2, 3}) {
          keys.insert(MaskOf(DropoutDraw{seed, step, micro_batch}, site, 0.5).key);
        }
      }
    }
  }
  EXPECT_EQ(keys.size(), 3 * 3 * 3 * 4);
}

TEST(MaskFactorsTest, AWordBelowThePartOfTheProbabilityDrops) {
  // The words of counter 0 and key 0: 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8.
  EXPECT_THAT(MaskFactors({.probability = 0.5}).Quad(0), ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(MaskFactors({.probability = 0.75}).Quad(0), ElementsAre(0, 4, 0, 0));
  EXPECT_THAT(MaskFactors({.probability = 0x6627e8d5p-32}).Quad(0)[0],
              static_cast<float>(1 / (1 - 0x6627e8d5p-32)));
  EXPECT_THAT(MaskFactors({.probability = 0x6627e8d6p-32}).Quad(0)[0], 0);
}

TEST(MaskFactorsTest, AllOrNearlyNothingMayBeDropped) {
  const MaskFactors all({.probability = 1, .key = 3});
  const MaskFactors few({.probability = std::numeric_limits<double>::min(), .key = 3});
  for (uint64_t quad = 0; quad < 1000; ++quad) {
    EXPECT_THAT(all.Quad(quad), ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(few.Quad(quad), ElementsAre(1, 1, 1, 1));
  }
}

TEST(MaskFactorsTest, QuadsBehind32BitsAreOthers) {
  const MaskFactors factors({.probability = 0.5, .key = 3});
  int equal = 0;
  for (uint64_t quad = 0; quad < 1000; ++quad) {
    equal += factors.Quad(quad) == factors.Quad(quad + (uint64_t{1} << 32)) ? 1 : 0;
  }
  EXPECT_NEAR(equal, 1000 / 16, 40);
}

TEST(MaskBoxTest, RowsLieByTheirStrides) {
  const MaskBox box = {
      .first = 7, .planes = 2, .plane_stride = 1000, .rows = 3, .row_stride = 10, .row_size = 4};
  EXPECT_THAT((std::array{box.RowAt(0), box.RowAt(2), box.RowAt(3), box.RowAt(5)}),
              ElementsAre(7, 27, 1007, 1027));
}

}  // namespace
}  // namespace gemini::trainer
