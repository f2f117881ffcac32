// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/next_uses.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/trace/kept_gradients.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kChunk = kTestChunkBytes;

RangeTrace SmallTrace() {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{kChunk, TensorGroup::kTrainable, 0}, {2 * kChunk, TensorGroup::kFrozen, 0}};
  trace.operators = {{0, 2, 0, 100}, {2, 1, 0, 5'000}, {3, 1, 0, 0}, {4, 0, 0, 20'000}};
  trace.uses = {{.tensor = 0}, {.tensor = 1}, {.tensor = 1}, {.tensor = 0}};
  trace.updated = {0};
  return *PackTrace(trace, kChunk);
}

TEST(NextUsesTest, EachUseKnowsTheNextInItsRound) {
  const NextUses next_uses(SmallTrace());
  EXPECT_THAT(next_uses.next, ElementsAre(2, 1, kNever, kNever));
  // Ranges: parameters of 0, its gradients, parameters of 1.
  EXPECT_THAT(next_uses.first, ElementsAre(0, kNever, 0));
  EXPECT_THAT(next_uses.ends_at_update, ElementsAre(true, true, false));
}

TEST(NextUsesTest, WhatIsUpdatedOnDeviceOutlivesTheUpdateButItsGradients) {
  RangeTrace in_host = SmallTrace();
  in_host.gradient_outs = {{.position = 2, .range = 1, .size_bytes = kChunk}};
  const RangeTrace trace = WithKeptGradients(in_host, {0}, {});
  const NextUses next_uses(trace);
  EXPECT_THAT(next_uses.first, ElementsAre(0, 2, 0, 3, 3));
  EXPECT_THAT(next_uses.ends_at_update, ElementsAre(false, false, false, false, false));
  EXPECT_THAT(next_uses.comes_blank, ElementsAre(false, true, false, false, false));
  EXPECT_EQ(LargestOperatorBytes(trace), 20'000 + 4 * kChunk);
  EXPECT_THAT(SlotsAtPositions(trace, 20'000 + 4 * kChunk - 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("operator 3"), HasSubstr("the update on DEVICE"))));
}

TEST(NextUsesTest, LateGradientsOutliveTheUpdateAndTheirParametersDoNot) {
  RangeTrace in_host = SmallTrace();
  in_host.gradient_outs = {{.position = 2, .range = 1, .size_bytes = kChunk}};
  const RangeTrace trace = WithKeptGradients(in_host, {}, {0});
  const NextUses next_uses(trace);
  EXPECT_THAT(next_uses.first, ElementsAre(0, 2, 0));
  EXPECT_THAT(next_uses.ends_at_update, ElementsAre(true, false, false));
  EXPECT_THAT(next_uses.comes_blank, ElementsAre(false, true, false));
  // The update's operator has them.
  EXPECT_EQ(LargestOperatorBytes(trace), 20'000 + kChunk);
  EXPECT_THAT(SlotsAtPositions(trace, 20'000 + kChunk - 1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the update on DEVICE")));
}

TEST(NextUsesTest, SlotsAreWhatNonModelDataLeaves) {
  EXPECT_EQ(LargestOperatorBytes(SmallTrace()), 20'000);
  EXPECT_THAT(SlotsAtPositions(SmallTrace(), 20'000), IsOkAndHolds(ElementsAre(4, 3, 4, 0)));
}

TEST(NextUsesTest, TheWorstOperatorIsNamedWithItsNumbers) {
  EXPECT_THAT(SlotsAtPositions(SmallTrace(), 19'999),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("operator 3 of phase train"), HasSubstr("20000 bytes"),
                             HasSubstr("0 B of chunks"))));
  EXPECT_THAT(SlotsAtPositions(SmallTrace(), 100), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace gemini::policies
