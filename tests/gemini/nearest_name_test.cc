// SPDX-License-Identifier: Apache-2.0
#include "gemini/nearest_name.h"

#include <vector>

#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(NearestName, CountsEachInsertionDeletionChangeAndSwapOnce) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", "abc"), 0);
  EXPECT_EQ(EditDistance("abc", "abd"), 1);
  EXPECT_EQ(EditDistance("abc", "acb"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(NearestName, FindsAMistypedKeyAndTakesUnderscoresForDashes) {
  const std::vector<absl::string_view> names = {"steps", "batch", "warmup-steps", "weight-decay"};
  EXPECT_EQ(NearestName("wieght_decay", names), "weight-decay");
  EXPECT_EQ(NearestName("warmup_steps", names), "warmup-steps");
  EXPECT_EQ(NearestName("step", names), "steps");
}

TEST(NearestName, SuggestsNothingThatIsFarAway) {
  const std::vector<absl::string_view> names = {"steps", "batch"};
  EXPECT_EQ(NearestName("hidden-size", names), "");
  EXPECT_EQ(NearestName(std::string(1 << 20, 's'), names), "");
  EXPECT_EQ(NearestName("steps", {}), "");
}

TEST(NearestNameTest, DidYouMeanAsksOnlyWhenThereIsANearName) {
  EXPECT_EQ(DidYouMean("host-memroy", {"host-memory", "nvme"}, "--"),
            "; did you mean '--host-memory'?");
  EXPECT_EQ(DidYouMean("colour", {"host-memory", "nvme"}), "");
}

}  // namespace
}  // namespace gemini
