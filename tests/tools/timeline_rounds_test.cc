// SPDX-License-Identifier: Apache-2.0
#include "tools/timeline_rounds.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Operators of 10 ns, one after another, from `begin_ns`; positions from `first`.
void AddOperators(std::vector<TimelineEvent>& events, int64_t begin_ns, uint32_t first,
                  uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    events.push_back({.subject = first + i,
                      .begin_ns = begin_ns + 10 * i + 2,
                      .end_ns = begin_ns + 10 * i + 10,
                      .stall_ns = 2});
  }
}

TEST(TimelineRoundsTest, TheLastCompleteRoundHasWhatBeganInIt) {
  std::vector<TimelineEvent> events;
  // Written when it ended, after the operators that began later.
  AddOperators(events, 0, 3, 2);
  AddOperators(events, 20, 0, 5);
  AddOperators(events, 70, 0, 5);
  AddOperators(events, 120, 0, 2);
  const auto fetch = [&](int64_t begin_ns) {
    events.push_back({.lane = TimelineLane::kFetch, .begin_ns = begin_ns, .end_ns = begin_ns + 30});
  };
  fetch(119);
  fetch(70);
  fetch(69);
  fetch(120);
  ASSERT_OK_AND_ASSIGN(const RoundsOfTimeline found, LastRounds(events, 0, 1));
  EXPECT_EQ(found.num_rounds, 1);
  EXPECT_EQ(found.num_positions, 5);
  ASSERT_EQ(found.events.size(), 7);
  EXPECT_EQ(found.events.front().begin_ns - found.events.front().stall_ns, 70);
  EXPECT_EQ(found.events.back().begin_ns, 119);
  ASSERT_OK_AND_ASSIGN(const RoundsOfTimeline both, LastRounds(events, 0, 9));
  EXPECT_EQ(both.num_rounds, 2);
  EXPECT_EQ(both.events.size(), 13);
}

TEST(TimelineRoundsTest, RoundsOfAnotherLengthAreNotTaken) {
  std::vector<TimelineEvent> events;
  AddOperators(events, 0, 0, 6);    // A step.
  AddOperators(events, 100, 0, 3);  // An evaluation.
  AddOperators(events, 200, 0, 3);
  AddOperators(events, 300, 0, 1);
  ASSERT_OK_AND_ASSIGN(const RoundsOfTimeline longest, LastRounds(events, 0, 1));
  EXPECT_EQ(longest.num_positions, 6);
  EXPECT_EQ(longest.events.front().begin_ns, 2);
  ASSERT_OK_AND_ASSIGN(const RoundsOfTimeline evaluation, LastRounds(events, 3, 1));
  EXPECT_EQ(evaluation.events.front().begin_ns, 202);
  // As long as it is to be, so it is over though nothing comes behind it.
  events.pop_back();
  EXPECT_OK(LastRounds(events, 3, 1));
}

TEST(TimelineRoundsTest, ARoundWithAHoleIsNone) {
  std::vector<TimelineEvent> events;
  AddOperators(events, 0, 0, 2);
  AddOperators(events, 30, 3, 3);
  AddOperators(events, 100, 0, 4);
  EXPECT_THAT(LastRounds(events, 6, 1),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no complete round of 6 operators"),
                             HasSubstr("9 events begin 2 rounds, the last one with 4"))));
  // Its end is not known.
  EXPECT_THAT(LastRounds(events, 0, 1), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(LastRounds({}, 0, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("0 events begin 0 rounds")));
}

}  // namespace
}  // namespace gemini::tools
