// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/replacement.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/trace/kept_gradients.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunk = kTestChunkBytes;

// One operator for each tensor of `order`.
RangeTrace TraceOf(const std::vector<int64_t>& chunks, const std::vector<int32_t>& order,
                   TensorGroup group = TensorGroup::kFrozen) {
  Trace trace;
  for (const int64_t count : chunks) trace.tensors.push_back({count * kChunk, group, 0});
  for (const int32_t tensor : order) {
    trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 1, 0, 0});
    trace.uses.push_back({.tensor = tensor});
  }
  if (group == TensorGroup::kTrainable) {
    trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 0, 0, 0});
    for (size_t i = 0; i < chunks.size(); ++i) trace.updated.push_back(static_cast<int32_t>(i));
  }
  return *PackTrace(trace, kChunk);
}

absl::StatusOr<std::vector<Stay>> StaysOf(const RangeTrace& trace, int32_t num_slots,
                                          const ReplacementRule& rule = {}) {
  return MakeStays(trace, NextUses(trace), std::vector<int32_t>(trace.num_positions(), num_slots),
                   num_slots, rule);
}

int64_t Fetches(const std::vector<Stay>& stays) {
  return std::count_if(stays.begin(), stays.end(),
                       [](const Stay& stay) { return stay.needed != kAlways; });
}

TEST(ReplacementTest, OfACircleAllButOneSlotKeepsWhatItHas) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Stay> stays,
                       StaysOf(TraceOf({1, 1, 1, 1, 1}, {0, 1, 2, 3, 4}), 3));
  EXPECT_EQ(Fetches(stays), 3);  // Two stay for good; three pass through the third slot.
  EXPECT_EQ(stays.size(), 5u);
}

TEST(ReplacementTest, ThereAndBackTheLastStayAtTheTurnAndTheFirstIntoTheNextRound) {
  const RangeTrace trace = TraceOf({1, 1, 1, 1}, {0, 1, 2, 3, 3, 2, 1, 0});
  ASSERT_OK_AND_ASSIGN(const std::vector<Stay> stays, StaysOf(trace, 2));
  EXPECT_EQ(Fetches(stays), 4);
}

TEST(ReplacementTest, WhoForgetsTheNextRoundFetchesEverythingInEach) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Stay> circle,
      StaysOf(TraceOf({1, 1, 1, 1, 1}, {0, 1, 2, 3, 4}), 3, {.looks_ahead = false}));
  EXPECT_EQ(Fetches(circle), 5);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Stay> back,
      StaysOf(TraceOf({1, 1, 1, 1}, {0, 1, 2, 3, 3, 2, 1, 0}), 2, {.looks_ahead = false}));
  EXPECT_EQ(Fetches(back), 6);
}

TEST(ReplacementTest, WhatIsTrainedLeavesByItselfAtTheUpdate) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Stay> stays,
                       StaysOf(TraceOf({1, 1}, {0, 1, 1, 0}, TensorGroup::kTrainable), 2));
  ASSERT_EQ(stays.size(), 2u);
  for (const Stay& stay : stays) {
    EXPECT_EQ(stay.end, StayEnd::kStale);
    EXPECT_EQ(stay.last, 4);
  }
}

// Its room is for what the update brings.
TEST(ReplacementTest, BesideUpdatesOnDeviceWhatIsTrainedInHostLeavesAfterItsLastUse) {
  Trace tensors;
  for (int32_t i = 0; i < 2; ++i) {
    tensors.tensors.push_back({kChunk, TensorGroup::kTrainable, 0});
    tensors.operators.push_back({i, 1, 0, 0});
    tensors.uses.push_back({.tensor = i});
    tensors.gradient_outs.push_back({i, i});
    tensors.updated.push_back(i);
  }
  tensors.operators.push_back({2, 0, 0, 0});
  ASSERT_OK_AND_ASSIGN(const RangeTrace in_host, PackTrace(tensors, kChunk));
  const RangeTrace trace = WithKeptGradients(in_host, {0}, {});
  ASSERT_OK_AND_ASSIGN(const std::vector<Stay> stays, StaysOf(trace, 5));
  ASSERT_EQ(stays.size(), 5u);
  for (const Stay& stay : stays) {
    if (stay.range == 1) {  // The gradients, from the operator that completes them to the update.
      EXPECT_EQ(std::pair(stay.needed, stay.last), std::pair(0, 2));
      EXPECT_EQ(stay.end, StayEnd::kEvicted);
    } else if (stay.range == 2) {
      EXPECT_EQ(std::pair(stay.needed, stay.last), std::pair(1, 1));
      EXPECT_EQ(stay.end, StayEnd::kEvicted);
    } else {  // Parameters and moments of what is updated on DEVICE.
      EXPECT_EQ(stay.end, StayEnd::kStays);
    }
  }
}

TEST(ReplacementTest, LateGradientsLeaveAfterTheUpdateAndAllParametersBefore) {
  Trace tensors;
  for (int32_t i = 0; i < 2; ++i) {
    tensors.tensors.push_back({kChunk, TensorGroup::kTrainable, 0});
    tensors.operators.push_back({i, 1, 0, 0});
    tensors.uses.push_back({.tensor = i});
    tensors.gradient_outs.push_back({i, i});
    tensors.updated.push_back(i);
  }
  tensors.operators.push_back({2, 0, 0, 0});
  ASSERT_OK_AND_ASSIGN(const RangeTrace in_host, PackTrace(tensors, kChunk));
  ASSERT_OK_AND_ASSIGN(const std::vector<Stay> stays,
                       StaysOf(WithKeptGradients(in_host, {}, {0}), 3));
  ASSERT_EQ(stays.size(), 3u);
  for (const Stay& stay : stays) {
    EXPECT_EQ(stay.end, StayEnd::kEvicted);
    EXPECT_EQ(stay.needed, stay.range / 2);
    EXPECT_EQ(stay.last, stay.range == 1 ? 2 : stay.range / 2);
  }
}

// It is written back behind the update, so it is not dirty in the next round.
TEST(ReplacementTest, WhatWasUpdatedOnDeviceIsNotSpared) {
  Trace tensors;
  tensors.tensors = {{kChunk, TensorGroup::kTrainable, 0}, {kChunk, TensorGroup::kFrozen, 0}};
  tensors.operators = {{0, 2, 0, 0}, {2, 1, 0, 0}, {3, 1, 0, 0}, {4, 1, 0, 0}, {5, 0, 0, 0}};
  tensors.uses = {{.tensor = 0}, {.tensor = 1}, {.tensor = 0}, {.tensor = 1}, {.tensor = 0}};
  tensors.gradient_outs = {{3, 0}};
  tensors.updated = {0};
  ASSERT_OK_AND_ASSIGN(const RangeTrace in_host, PackTrace(tensors, kChunk));
  const RangeTrace trace = WithKeptGradients(in_host, {0}, {});
  // Operator 1 has no room for both moments beside what operators use: one leaves.
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Stay> stays,
      MakeStays(trace, NextUses(trace), {4, 3, 4, 5, 5}, 5, {.spares_dirty = true}));
  EXPECT_EQ(Fetches(stays), 2);  // And the gradients come.
  for (const Stay& stay : stays) {
    if (trace.ranges[stay.range].kind == ChunkKind::kParam) {
      EXPECT_EQ(stay.end, StayEnd::kStays) << stay.range;
    }
  }
}

TEST(ReplacementTest, StreamingKeepsWhatIsKeptAndNothingElse) {
  const RangeTrace trace = TraceOf({1, 1, 1}, {0, 1, 2, 2, 1, 0});
  ASSERT_OK_AND_ASSIGN(std::vector<Stay> stays, StaysOf(trace, 3, {.streams = true}));
  EXPECT_EQ(Fetches(stays), 4);  // 0 and 2 stay over their neighbours' bounds.
  ASSERT_OK_AND_ASSIGN(stays, StaysOf(trace, 3, {.kept = {false, true, false}, .streams = true}));
  EXPECT_EQ(Fetches(stays), 2);
  EXPECT_THAT(StaysOf(trace, 2, {.kept = {true, true, true}}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("operator 2")));
}

TEST(ReplacementTest, ARunIsMadeEvenWhereSinglesSplitTheRoom) {
  // The run of three needs all slots but one, and the two singles are used with it in turn.
  const RangeTrace trace = TraceOf({1, 1, 3}, {0, 1, 0, 2, 1, 0, 2, 0});
  ASSERT_OK_AND_ASSIGN(const std::vector<Stay> stays, StaysOf(trace, 4));
  for (int32_t p = 0; p < trace.num_positions(); ++p) {
    const int32_t used = trace.uses_of(p)[0].range;
    EXPECT_TRUE(std::any_of(stays.begin(), stays.end(),
                            [&](const Stay& stay) {
                              return stay.range == used && (stay.needed == kAlways ||
                                                            (stay.needed <= p && p <= stay.last) ||
                                                            p + trace.num_positions() <= stay.last);
                            }))
        << "position " << p;
  }
}

// Of several rounds the one with the fewest fetches is taken.
TEST(ReplacementTest, MoreRoundsNeverFetchMoreAndSometimesLess) {
  int fewer = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_OK_AND_ASSIGN(const RangeTrace trace,
                         PackTrace(RandomTrace(DrawOptions(seed, true), seed).Make(), kChunk));
    const int64_t budget =
        LargestOperatorBytes(trace) + static_cast<int64_t>(seed % 8) * 4 * kChunk;
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> slots_at, SlotsAtPositions(trace, budget));
    const auto fetched_chunks = [&](int most_rounds) {
      const auto stays =
          MakeStays(trace, NextUses(trace), slots_at, static_cast<int32_t>(budget / kChunk),
                    {.most_rounds = most_rounds});
      EXPECT_OK(stays.status());
      int64_t chunks = 0;
      for (const Stay& stay : *stays) {
        if (stay.needed != kAlways) chunks += trace.ranges[stay.range].num_bundles;
      }
      return chunks;
    };
    const int64_t one = fetched_chunks(1), four = fetched_chunks(4);
    EXPECT_LE(four, one);
    fewer += four < one ? 1 : 0;
  }
  EXPECT_GT(fewer, 5);
}

// Half of the chunks are wanted first in each round and again at its end, so they stay into the
// next one. In between each gives its slot to one of the others, which is used once more just after
// the first has come back: so all but one of them find no slot that is free at both ends of the
// round.
RangeTrace TraceOfManyWithoutPlace(int32_t num_homes) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < num_homes; ++i) order.push_back(i);
  for (int32_t i = 0; i < num_homes; ++i) order.insert(order.end(), {i, num_homes + i});
  order.push_back(2 * num_homes - 1);
  for (int32_t i = 0; i < num_homes - 1; ++i) order.insert(order.end(), {i, num_homes + i});
  order.push_back(num_homes - 1);
  return TraceOf(std::vector<int64_t>(2 * num_homes, 1), order);
}

TEST(ReplacementTest, ManyChunksThatFindNoPlaceAtOnceAreLeftOutInOnePass) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Stay> few, StaysOf(TraceOfManyWithoutPlace(4), 4));
  EXPECT_EQ(Fetches(few), 11);
  constexpr int32_t kHomes = 200'000;
  const RangeTrace trace = TraceOfManyWithoutPlace(kHomes);
  const auto shorter_of_two = [&](const ReplacementRule& rule) {
    absl::Duration shorter = absl::InfiniteDuration();
    for (int i = 0; i < 2; ++i) {
      const absl::Time start = absl::Now();
      EXPECT_OK(StaysOf(trace, kHomes, rule).status());
      shorter = std::min(shorter, absl::Now() - start);
    }
    return shorter;
  };
  // Where none may stay into the next round, none is without a place, and a round is played less
  // often.
  const absl::Duration with_none = shorter_of_two({.most_rounds = 1, .most_closings = 0});
  const absl::Duration with_many = shorter_of_two({.most_rounds = 1});
  std::printf("stays in %s where none is without a place, in %s where 199,999 are\n",
              absl::FormatDuration(with_none).c_str(), absl::FormatDuration(with_many).c_str());
  // 1.6 times as long; 15 times where each of them is looked for among the others.
  EXPECT_LE(with_many, 6 * with_none);
}

TEST(ReplacementTest, AnOperatorThatNeedsMoreThanItsSlotsIsRefused) {
  const RangeTrace trace = TraceOf({2, 1}, {0, 1});
  EXPECT_THAT(StaysOf(trace, 1), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("operator 0 uses 2 chunks at once, of 1")));
  EXPECT_OK(StaysOf(trace, 2).status());
}

// How often the stays of one round, played twice at most, are interrupted.
int64_t AskedFor(const RangeTrace& trace, int32_t num_slots) {
  int64_t asked = 0;
  EXPECT_OK(MakeStays(trace, NextUses(trace),
                      std::vector<int32_t>(trace.num_positions(), num_slots), num_slots,
                      {.looks_ahead = false, .most_closings = 0}, [&]() -> absl::Status {
                        ++asked;
                        return absl::OkStatus();
                      }));
  return asked;
}

TEST(ReplacementTest, ALongRoundIsInterruptedEvery65536Positions) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < 10 << 16; ++i) order.push_back(i % 5);
  EXPECT_GE(AskedFor(TraceOf({1, 1, 1, 1, 1}, order), 3), 10);
}

TEST(ReplacementTest, TheSearchForRunsIsInterruptedEvery65536SlotsThatItLooksAt) {
  // Three long runs in turn, of which one fits beside many small ranges that come back.
  std::vector<int64_t> chunks(400, 1);
  chunks.insert(chunks.end(), 3, 150);
  std::vector<int32_t> order;
  std::mt19937_64 random(/*seed=*/3);
  for (int32_t i = 0; i < 4'000; ++i) {
    order.push_back(i % 4 == 0 ? 400 + i / 4 % 3 : static_cast<int32_t>(random() % 400));
  }
  EXPECT_GE(AskedFor(TraceOf(chunks, order), 300), 3);
}

TEST(ReplacementTest, AnInterruptInTheMiddleOfARoundEndsIt) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < 3 << 16; ++i) order.push_back(i % 5);
  const RangeTrace trace = TraceOf({1, 1, 1, 1, 1}, order);
  int asked = 0;
  EXPECT_THAT(
      MakeStays(trace, NextUses(trace), std::vector<int32_t>(trace.num_positions(), 3), 3, {},
                [&]() -> absl::Status {
                  return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("enough");
                }),
      StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace gemini::policies
