// SPDX-License-Identifier: Apache-2.0
#include "tools/planned_timeline.h"

#include <map>
#include <vector>

#include "gemini/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/planner/planner.h"
#include "policies/simulator/simulator.h"
#include "tests/status_matchers.h"

namespace gemini::tools {
namespace {

constexpr int64_t kChunk = 4096;
constexpr CostModel kCosts = {.host_to_device = 1e9,
                              .device_to_host = 1e9,
                              .update_elements_per_second = 1e9,
                              .copy_latency_ns = 100};

// Six layers forward and backward, one of them of three chunks, in room for four; gradients, the
// update.
Trace SmallStep() {
  constexpr int32_t kLayers = 6;
  Trace trace;
  trace.phase = "train";
  for (int32_t i = 0; i < kLayers; ++i) {
    trace.tensors.push_back({i == 2 ? 3 * kChunk : kChunk, TensorGroup::kTrainable, 0});
    trace.updated.push_back(i);
  }
  for (int32_t i = 0; i < 2 * kLayers; ++i) {
    const int32_t tensor = i < kLayers ? i : 2 * kLayers - 1 - i;
    trace.operators.push_back({i, 1, 3'000, 0});
    trace.uses.push_back({.tensor = tensor});
    if (i >= kLayers) trace.gradient_outs.push_back({i, tensor});
  }
  trace.operators.push_back({2 * kLayers, 0, 10, 0});
  return trace;
}

TEST(PlannedTimelineTest, LanesAddUpToThePrediction) {
  ASSERT_OK_AND_ASSIGN(const policies::RangeTrace trace, policies::PackTrace(SmallStep(), kChunk));
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       policies::MakePlan({.trace = trace,
                                           .budget_bytes = {{4 * kChunk, int64_t{1} << 40, 0}},
                                           .costs = kCosts,
                                           .policy = {}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<TimelineEvent> events,
                       PlannedTimeline(trace, plan, kCosts, policies::kUnlimitedBytes));
  std::map<TimelineLane, int64_t> bytes;
  std::array<int64_t, kNumStallCauses> stalls = {};
  int64_t operators = 0, end_ns = 0, most_bytes = 0, updates = 0;
  for (const TimelineEvent& event : events) {
    EXPECT_LE(event.begin_ns, event.end_ns);
    if (event.lane == TimelineLane::kOperator) {
      EXPECT_EQ(event.subject, operators++);
      stalls[static_cast<size_t>(event.cause)] += event.stall_ns;
      end_ns = std::max(end_ns, event.end_ns);
      most_bytes = std::max(most_bytes, event.size_bytes);
      continue;
    }
    bytes[event.lane] += event.size_bytes;
    if (event.lane == TimelineLane::kUpdate) {
      ++updates;
      EXPECT_LT(event.subject, 8);  // Bundles, one of which is three chunks long.
    } else {
      const ChunkId chunk(event.subject);
      EXPECT_EQ(KindOf(chunk),
                event.lane == TimelineLane::kFetch ? ChunkKind::kParam : ChunkKind::kGrad);
    }
  }
  EXPECT_EQ(operators, trace.num_positions());
  EXPECT_EQ(bytes[TimelineLane::kFetch], plan.prediction.fetch_bytes);
  EXPECT_EQ(bytes[TimelineLane::kEvict], plan.prediction.evict_bytes);
  EXPECT_GT(plan.prediction.fetch_bytes, 0);
  EXPECT_EQ(updates, 6);
  EXPECT_EQ(stalls, plan.prediction.stall_ns);
  EXPECT_EQ(end_ns, plan.prediction.round_ns);
  EXPECT_EQ(most_bytes, plan.prediction.device_peak_bytes);
}

// The moments are no ranges of the trace, and the gradients' room takes no time.
TEST(PlannedTimelineTest, UpdatesOnDeviceMoveMomentsToo) {
  ASSERT_OK_AND_ASSIGN(const policies::RangeTrace trace, policies::PackTrace(SmallStep(), kChunk));
  ASSERT_OK_AND_ASSIGN(
      const Plan plan,
      policies::MakePlan({.trace = trace,
                          .budget_bytes = {{9 * kChunk, int64_t{1} << 40, 0}},
                          .costs = kCosts,
                          .policy = {PolicyKind::kStatic, 0, /*optimizer_fraction=*/0.25}}));
  ASSERT_EQ(plan.device_updates.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const std::vector<TimelineEvent> events,
                       PlannedTimeline(trace, plan, kCosts, policies::kUnlimitedBytes));
  std::map<ChunkKind, int> out;
  int64_t fetch_bytes = 0, updates = 0;
  for (const TimelineEvent& event : events) {
    updates += event.lane == TimelineLane::kUpdate ? 1 : 0;
    if (event.lane == TimelineLane::kFetch) fetch_bytes += event.size_bytes;
    if (event.lane == TimelineLane::kEvict) ++out[KindOf(ChunkId(event.subject))];
  }
  EXPECT_EQ(updates, 4);  // In HOST.
  EXPECT_EQ(fetch_bytes, plan.prediction.fetch_bytes);
  EXPECT_EQ(out[ChunkKind::kParam], 2);
  EXPECT_EQ(out[ChunkKind::kExpAvg], 2);
  EXPECT_EQ(out[ChunkKind::kExpAvgSq], 2);
  EXPECT_EQ(out[ChunkKind::kGrad], 6);
}

TEST(PlannedTimelineTest, WhatNvmeMovesIsShownByChunk) {
  ASSERT_OK_AND_ASSIGN(const policies::RangeTrace trace, policies::PackTrace(SmallStep(), kChunk));
  constexpr int64_t kHost = 24 * kChunk;  // Of 32 chunks.
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       policies::MakePlan({.trace = trace,
                                           .budget_bytes = {{4 * kChunk, kHost, 0}},
                                           .costs = kCosts,
                                           .policy = {}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<TimelineEvent> events,
                       PlannedTimeline(trace, plan, kCosts, kHost));
  std::map<TimelineLane, int64_t> bytes;
  bool any_moment = false;
  for (const TimelineEvent& event : events) {
    if (event.lane != TimelineLane::kNvmeRead && event.lane != TimelineLane::kNvmeWrite) continue;
    bytes[event.lane] += event.size_bytes;
    EXPECT_EQ(event.size_bytes, kChunk);
    EXPECT_LT(BundleOf(ChunkId(event.subject)).value(), 8);
    any_moment |= IsMoment(KindOf(ChunkId(event.subject)));
  }
  EXPECT_GT(plan.prediction.nvme_read_bytes, 0);
  EXPECT_EQ(bytes[TimelineLane::kNvmeRead], plan.prediction.nvme_read_bytes);
  EXPECT_EQ(bytes[TimelineLane::kNvmeWrite], plan.prediction.nvme_write_bytes);
  EXPECT_TRUE(any_moment);  // No range of the plan has them.
}

TEST(PlannedTimelineTest, APlanOfAnotherTraceIsRefused) {
  ASSERT_OK_AND_ASSIGN(const policies::RangeTrace trace, policies::PackTrace(SmallStep(), kChunk));
  EXPECT_THAT(PlannedTimeline(trace, Plan(), kCosts, policies::kUnlimitedBytes),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::tools
