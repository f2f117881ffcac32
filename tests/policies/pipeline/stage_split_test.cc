// SPDX-License-Identifier: Apache-2.0
#include "policies/pipeline/stage_split.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Split = std::vector<int64_t>;

TEST(StageSplitTest, EqualBlocksAreDealtEvenlyAndEarlierStagesHaveMore) {
  const auto deal = [](size_t blocks, int64_t stages) {
    return DealBlocks({.block_ns = Split(blocks, 10)}, stages);
  };
  EXPECT_THAT(deal(12, 4), IsOkAndHolds(ElementsAre(3, 3, 3, 3)));
  EXPECT_THAT(deal(6, 4), IsOkAndHolds(ElementsAre(2, 2, 1, 1)));
  EXPECT_THAT(deal(3, 3), IsOkAndHolds(ElementsAre(1, 1, 1)));
  EXPECT_THAT(deal(5, 1), IsOkAndHolds(ElementsAre(5)));
  // Also where squares are more than a double holds exactly.
  EXPECT_THAT(DealBlocks({.block_ns = Split(6, 200'000'003)}, 4),
              IsOkAndHolds(ElementsAre(2, 2, 1, 1)));
  EXPECT_THAT(DealBlocks({.block_ns = Split(10, 51'234'567)}, 4),
              IsOkAndHolds(ElementsAre(3, 3, 2, 2)));
  constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;
  EXPECT_THAT(DealBlocks({.block_ns = Split(24, kHour)}, 5),
              IsOkAndHolds(ElementsAre(5, 5, 5, 5, 4)));
}

TEST(StageSplitTest, WhatEndsDoBesideTheirBlocksCounts) {
  StageTimes times = {.block_ns = Split(12, 10), .first_ns = 5, .last_ns = 30};
  EXPECT_THAT(DealBlocks(times, 2), IsOkAndHolds(ElementsAre(7, 5)));
  EXPECT_THAT(DealBlocks(times, 4), IsOkAndHolds(ElementsAre(3, 4, 4, 1)));
  times = {.block_ns = {1, 1, 50, 1, 1, 1}};
  EXPECT_THAT(DealBlocks(times, 3), IsOkAndHolds(ElementsAre(2, 1, 3)));
}

// The slowest stage's time, the sum of squares, and what earlier stages have less.
using Grade = std::tuple<int64_t, int64_t, Split>;

Grade GradeOf(const StageTimes& times, const Split& split) {
  int64_t slowest = 0, squares = 0;
  size_t block = 0;
  Split fewer;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    int64_t ns = stage == 0 ? times.first_ns : 0;
    if (stage + 1 == split.size()) ns += times.last_ns;
    for (int64_t i = 0; i < split[stage]; ++i) ns += times.block_ns[block++];
    slowest = std::max(slowest, ns);
    squares += ns * ns;
    fewer.push_back(-split[stage]);
  }
  return {slowest, squares, fewer};
}

// All splits of `blocks` into `stages`.
void ForEachSplit(int64_t blocks, int64_t stages, Split begun, std::vector<Split>& all) {
  begun.push_back(blocks);
  if (stages == 1) {
    all.push_back(begun);
    return;
  }
  for (int64_t count = 1; count <= blocks - (stages - 1); ++count) {
    begun.back() = count;
    ForEachSplit(blocks - count, stages - 1, begun, all);
  }
}

TEST(StageSplitTest, NoSplitIsBetter) {
  std::mt19937 random(7);
  const auto draw = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(0, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    const int64_t stages = 1 + draw(4);
    StageTimes times = {.block_ns = Split(static_cast<size_t>(stages + draw(6))),
                        .first_ns = draw(5),
                        .last_ns = draw(9)};
    for (int64_t& ns : times.block_ns) ns = draw(i % 2 == 0 ? 9 : 2);
    if (i % 3 == 0) {  // As in most models.
      times.first_ns = 0;
      times.last_ns = draw(90);
      times.block_ns.assign(times.block_ns.size(), 1 + draw(9));
    }
    std::vector<Split> all;
    ForEachSplit(static_cast<int64_t>(times.block_ns.size()), stages, {}, all);
    const auto grade = [&](const Split& split) { return GradeOf(times, split); };
    ASSERT_OK_AND_ASSIGN(const Split dealt, DealBlocks(times, stages));
    EXPECT_EQ(dealt, *std::ranges::min_element(all, {}, grade)) << "case " << i;
  }
}

TEST(StageSplitTest, MoreStagesThanBlocksAndTimesOutOfRangeAreRefused) {
  EXPECT_THAT(DealBlocks({.block_ns = {1, 1}}, 3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("3 stages"), HasSubstr("the model has 2"))));
  EXPECT_THAT(DealBlocks({.block_ns = {1}}, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DealBlocks({.block_ns = {1, -1}}, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(DealBlocks({.block_ns = {kMost, kMost}, .last_ns = kMost}, 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(StageSplitTest, ASplitIsReadAsItIsWritten) {
  EXPECT_THAT(ParseStageSplit("5,7", 12, 2), IsOkAndHolds(ElementsAre(5, 7)));
  for (const std::string text : {"", "12", "5,6", "5,8", "4,4,4", "0,12", "-1,13", "5;7", "5,,7",
                                 "9223372036854775807,9223372036854775807"}) {
    EXPECT_THAT(ParseStageSplit(text, 12, 2),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wanted: 2 numbers")))
        << text;
  }
  EXPECT_THAT(ParseStageSplit("1,1,1", 2, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 stages")));
}

}  // namespace
}  // namespace gemini::policies
