// SPDX-License-Identifier: Apache-2.0
#include "client/session/device_split.h"

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

constexpr int64_t kContext = 500, kSlab = 64, kDevice = 500 + 20 * 64;

TEST(DeviceSplitTest, OperatorsHaveHalfOfWhatIsLeftUntilTheFirstStep) {
  DeviceSplit split(kContext, kSlab, kDevice);
  EXPECT_EQ(split.apart_bytes(), kContext + 10 * kSlab);
  EXPECT_EQ(split.operator_bytes(), 10 * kSlab);
  // What is no slab is theirs.
  EXPECT_EQ(DeviceSplit(kContext, kSlab, kDevice + 63).operator_bytes(), 10 * kSlab + 63);
  EXPECT_EQ(DeviceSplit(kContext, kSlab, kContext).operator_bytes(), 0);
  EXPECT_EQ(DeviceSplit(kContext, kSlab, 100).apart_bytes(), 100);
}

// Of a model that has more chunks than fit.
DeviceSplit SplitOf(int64_t first_peak_bytes) {
  DeviceSplit split(kContext, kSlab, kDevice);
  split.AddChunks(100 * kSlab);
  EXPECT_FALSE(split.EndStep(10, kDevice));
  EXPECT_FALSE(split.EndStep(first_peak_bytes, kDevice));
  EXPECT_TRUE(split.EndStep(10, kDevice));
  return split;
}

TEST(DeviceSplitTest, ThreeStepsDecideAndLaterOnesGiveWholeSlabs) {
  DeviceSplit split = SplitOf(320);  // And a sixteenth: 340.
  EXPECT_EQ(split.operator_bytes(), 6 * kSlab);
  for (int step = 0; step < 7; ++step) EXPECT_FALSE(split.EndStep(100, kDevice)) << step;
  EXPECT_FALSE(split.EndStep(310, kDevice));  // 329 in eight steps: no whole slab.
  for (int step = 0; step < 7; ++step) EXPECT_FALSE(split.EndStep(100, kDevice)) << step;
  EXPECT_TRUE(split.EndStep(200, kDevice));  // 212.
  EXPECT_EQ(split.operator_bytes(), 4 * kSlab);
  for (int step = 0; step < 24; ++step) EXPECT_FALSE(split.EndStep(256, kDevice)) << step;
}

TEST(DeviceSplitTest, ChunksGetNoMoreThanThereAreOfThem) {
  DeviceSplit split(kContext, kSlab, kDevice);
  split.AddChunks(5 * kSlab);
  split.AddChunks(6 * kSlab + 1);
  for (int step = 0; step < 2; ++step) EXPECT_FALSE(split.EndStep(100, kDevice)) << step;
  EXPECT_TRUE(split.EndStep(100, kDevice));
  EXPECT_EQ(split.operator_bytes(), 8 * kSlab);
  split.AddChunks(kSlab);
  for (int step = 0; step < 7; ++step) EXPECT_FALSE(split.EndStep(100, kDevice)) << step;
  EXPECT_TRUE(split.EndStep(100, kDevice));
  EXPECT_EQ(split.operator_bytes(), 7 * kSlab);
}

TEST(DeviceSplitTest, OperatorsGrowDownToTheFloorOfChunksAndKeepIt) {
  DeviceSplit split = SplitOf(480);
  ASSERT_EQ(split.operator_bytes(), 8 * kSlab);
  EXPECT_TRUE(split.Grow(/*chunk_floor_bytes=*/100, kDevice));
  EXPECT_EQ(split.operator_bytes(), 10 * kSlab);  // A quarter more.
  for (int step = 0; step < 20; ++step) EXPECT_FALSE(split.EndStep(10, kDevice)) << step;
  // 20 slabs, of which chunks keep two for the floor, and one.
  while (split.Grow(100, kDevice)) {
  }
  EXPECT_EQ(split.operator_bytes(), 17 * kSlab);
  EXPECT_FALSE(split.Grow(100, kDevice));
  EXPECT_TRUE(split.Grow(64, kDevice));
  EXPECT_EQ(split.operator_bytes(), 18 * kSlab);
}

TEST(DeviceSplitTest, ALeaseThatShrinksTakesFromOperatorsLast) {
  DeviceSplit split = SplitOf(320);
  const int64_t apart = split.apart_bytes();
  EXPECT_FALSE(split.EndStep(320, apart + kSlab));
  EXPECT_TRUE(split.EndStep(320, apart - kSlab));
  EXPECT_EQ(split.apart_bytes(), apart - kSlab);
  EXPECT_FALSE(split.Grow(0, apart - kSlab));
}

}  // namespace
}  // namespace gemini::client
