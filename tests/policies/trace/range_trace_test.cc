// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/range_trace.h"

#include "gemini/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kChunk = kPageBytes;

// Space 0: two small trainable tensors share chunk 0, a third spans 1 to 3; space 1: one frozen.
Trace SmallTrace() {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{256, TensorGroup::kTrainable, 0},
                   {2 * kChunk + 1, TensorGroup::kTrainable, 0},
                   {256, TensorGroup::kTrainable, 0},
                   {100, TensorGroup::kFrozen, 1}};
  trace.operators = {{0, 3, 10, 5}, {3, 2, 20, 6}, {5, 0, 30, 7}};
  trace.uses = {{.tensor = 0},
                {.tensor = 2, .written = true},
                {.tensor = 1},
                {.tensor = 3},
                {.tensor = 1, .kind = ChunkKind::kGrad, .written = true}};
  trace.gradient_outs = {{0, 2}, {1, 1}};
  trace.updated = {0, 2, 1};
  return trace;
}

PlannedRange Range(int32_t space, int64_t first, int64_t num_bundles, ChunkKind kind) {
  return {.space = space, .first = BundleId(first), .num_bundles = num_bundles, .kind = kind};
}

TEST(RangeTraceTest, TensorsBecomeRangesInTheOrderOfTheLayout) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(SmallTrace(), kChunk));
  EXPECT_THAT(packed.ranges,
              ElementsAre(Range(0, 0, 1, ChunkKind::kParam), Range(0, 0, 1, ChunkKind::kGrad),
                          Range(0, 1, 3, ChunkKind::kParam), Range(0, 1, 3, ChunkKind::kGrad),
                          Range(1, 0, 1, ChunkKind::kParam)));
  // Of each trainable bundle param, both moments and grad; of the frozen one its parameters.
  EXPECT_THAT(packed.chunks_of_space, ElementsAre(16, 1));
  EXPECT_EQ(packed.phase, "train");
  EXPECT_EQ(packed.fingerprint, Fingerprint(SmallTrace()));
}

TEST(RangeTraceTest, StatesWhoseHomeIsNvmeAreNoChunksOfHost) {
  Trace trace = SmallTrace();
  for (TracedTensor& tensor : trace.tensors) {
    tensor.states_on_nvme = tensor.group == TensorGroup::kTrainable;
  }
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, kChunk));
  EXPECT_THAT(packed.chunks_of_space, ElementsAre(8, 1));
  EXPECT_EQ(packed.SpareSlotsOf(0), SpareSlots({}) + StateWindowSlots({}));
  EXPECT_EQ(packed.SpareSlotsOf(1), SpareSlots({}));
}

TEST(RangeTraceTest, AnOperatorNamesARangeOnceAndItIsWrittenIfAnyTensorIs) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(SmallTrace(), kChunk));
  ASSERT_EQ(packed.num_positions(), 3);
  ASSERT_EQ(packed.uses_of(0).size(), 2u);
  EXPECT_EQ(packed.uses_of(0)[0].range, 0);
  EXPECT_TRUE(packed.uses_of(0)[0].written);
  EXPECT_EQ(packed.uses_of(0)[1].range, 2);
  EXPECT_FALSE(packed.uses_of(0)[1].written);
  ASSERT_EQ(packed.uses_of(1).size(), 2u);
  EXPECT_EQ(packed.uses_of(1)[0].range, 4);
  EXPECT_EQ(packed.uses_of(1)[1].range, 3);
  EXPECT_TRUE(packed.uses_of(2).empty());
  EXPECT_EQ(packed.operators[1].compute_ns, 20);
  EXPECT_EQ(packed.operators[1].non_model_peak_bytes, 6);
}

TEST(RangeTraceTest, GradientsGoToGradRangesAndUpdatesNameEachRangeOnce) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(SmallTrace(), kChunk));
  ASSERT_EQ(packed.gradient_outs.size(), 2u);
  EXPECT_EQ(packed.gradient_outs[0].range, 1);
  EXPECT_EQ(packed.gradient_outs[0].size_bytes, 256);
  EXPECT_EQ(packed.gradient_outs[1].range, 3);
  EXPECT_EQ(packed.gradient_outs[1].size_bytes, 2 * kChunk + 1);
  EXPECT_THAT(packed.updated, ElementsAre(0, 2));
}

TEST(RangeTraceTest, LargerChunksMakeFewerRanges) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(SmallTrace(), 4 * kChunk));
  EXPECT_EQ(packed.ranges.size(), 3u);
  EXPECT_EQ(packed.uses_of(0).size(), 1u);
}

TEST(RangeTraceTest, WhatIsNoTraceOrNoChunkSizeIsRefused) {
  Trace trace = SmallTrace();
  EXPECT_THAT(PackTrace(trace, kChunk + 1), StatusIs(absl::StatusCode::kInvalidArgument));
  trace.uses[0].tensor = 9;
  EXPECT_THAT(PackTrace(trace, kChunk), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::policies
