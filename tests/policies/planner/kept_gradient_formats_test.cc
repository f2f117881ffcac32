// SPDX-License-Identifier: Apache-2.0
// Which formats of a space allow its gradients to stay on DEVICE, and for what: with 8-bit moments,
// or an optimizer that takes norms of whole tensors first.
#include <cstdint>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/planner/planner.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/kept_gradients.h"
#include "tests/policies/planner/layers_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kChunk = 8192;
constexpr int32_t kLayers = 6;

RangeTrace LayersOf(const StateFormat& format) {
  absl::StatusOr<RangeTrace> packed =
      PackTrace(LayersTrace(kLayers, kChunk, 10'000, format), kChunk);
  EXPECT_OK(packed.status());
  return packed.ok() ? *std::move(packed) : RangeTrace();
}

// Gradients leave slowly: beside the next forward, too, where they may.
TEST(KeptGradientFormatsTest, OfALayerWiseOptimizerNoneIsLate) {
  const CostModel costs = {.host_to_device = 1e12,
                           .device_to_host = 3e8,
                           .update_elements_per_second = 1e12,
                           .device_update_elements_per_second = 3e8,
                           .copy_latency_ns = 0};
  const RangeTrace adamw = LayersOf({});
  ASSERT_OK_AND_ASSIGN(const Plan with, PlanFor(adamw, 8 * kChunk, costs));
  EXPECT_THAT(with.late_gradients, Not(IsEmpty()));
  const RangeTrace lamb = LayersOf({.optimizer = OptimizerKind::kLamb});
  ASSERT_OK_AND_ASSIGN(const Plan without, PlanFor(lamb, 8 * kChunk, costs));
  EXPECT_THAT(without.late_gradients, IsEmpty());
  EXPECT_TRUE(MayBeLate(adamw, MayKeepGradients(adamw)));
  EXPECT_FALSE(MayBeLate(lamb, MayKeepGradients(lamb)));
}

// The planner would not make it; who simulates one that a file has refuses it.
TEST(KeptGradientFormatsTest, APlanWithALateGradientOfALayerWiseOptimizerIsRefused) {
  const RangeTrace adamw = LayersOf({}), lamb = LayersOf({.optimizer = OptimizerKind::kLamb});
  const CostModel costs = {.device_to_host = 3e8, .device_update_elements_per_second = 3e8};
  ASSERT_OK_AND_ASSIGN(Plan plan, PlanFor(adamw, 8 * kChunk, costs));
  ASSERT_THAT(plan.late_gradients, Not(IsEmpty()));
  ASSERT_TRUE(plan.device_updates.empty());
  ASSERT_OK(Simulate(adamw, plan, costs, false));
  plan.fingerprint = lamb.fingerprint;
  EXPECT_THAT(Simulate(lamb, plan, costs, false), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(KeptGradientFormatsTest, TrustRatiosTakeTimeWhereTheirUpdatesAre) {
  const CostModel costs = {.update_elements_per_second = 1e8,
                           .device_update_elements_per_second = 1e9};
  constexpr int64_t kOnDeviceNs = kLayers * kChunk / 4, kInHostNs = 10 * kOnDeviceNs;
  const auto last_operator_ns = [&](const RangeTrace& trace, PolicyKind policy) {
    const absl::StatusOr<Plan> plan = PlanFor(trace, 99 * kChunk, costs, {.kind = policy});
    EXPECT_OK(plan.status());
    if (!plan.ok()) return -1.0;
    EXPECT_EQ(plan->device_updates.empty(), policy == PolicyKind::kCpu);
    return static_cast<double>(LastOperatorNs(WithKeptGradients(trace, *plan), costs));
  };
  for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars}) {
    const RangeTrace trace = LayersOf({.optimizer = kind});
    EXPECT_THAT(MayKeepGradients(trace), ElementsAre(0, 2, 4, 6, 8, 10));
    EXPECT_NEAR(last_operator_ns(trace, PolicyKind::kCuda), kOnDeviceNs * (1 + kTrustByUpdate),
                kLayers);
    EXPECT_NEAR(last_operator_ns(trace, PolicyKind::kCpu), kInHostNs * kTrustByUpdate, kLayers);
  }
  EXPECT_EQ(last_operator_ns(LayersOf({}), PolicyKind::kCuda), kOnDeviceNs);
  EXPECT_EQ(last_operator_ns(LayersOf({}), PolicyKind::kCpu), 0);
  // Those that are in HOST in any case are a part of what was measured.
  const StateFormat quantised = {.optimizer = OptimizerKind::kLamb, .moments = MomentFormat::k8Bit};
  EXPECT_EQ(last_operator_ns(LayersOf(quantised), PolicyKind::kCpu), 0);
  RangeTrace on_nvme = LayersOf({.optimizer = OptimizerKind::kLamb});
  on_nvme.states_on_nvme[0] = true;
  EXPECT_EQ(LastOperatorNs(on_nvme, costs), 0);
}

// Nothing of it is updated before all ratios are known.
TEST(KeptGradientFormatsTest, UpdatesInHostBeginBehindTrustRatios) {
  const CostModel costs = {.host_to_device = 1e12,
                           .device_to_host = 1e12,
                           .update_elements_per_second = 1e7,
                           .copy_latency_ns = 0};
  constexpr int64_t kUpdatesNs = kLayers * kChunk / 4 * 100;
  const PolicyOptions in_host = {.kind = PolicyKind::kCpu};
  ASSERT_OK_AND_ASSIGN(const Plan adamw, PlanFor(LayersOf({}), 8 * kChunk, costs, in_host));
  ASSERT_OK_AND_ASSIGN(const Plan lamb, PlanFor(LayersOf({.optimizer = OptimizerKind::kLamb}),
                                                8 * kChunk, costs, in_host));
  EXPECT_GE(adamw.prediction.round_ns, kUpdatesNs);
  EXPECT_NEAR(static_cast<double>(lamb.prediction.round_ns - adamw.prediction.round_ns),
              kTrustByUpdate * kUpdatesNs, kLayers);
}

// So that their passes over whole tensors are there, too, with nothing to wait for in HOST.
TEST(KeptGradientFormatsTest, AFastDeviceUpdatesLayersWhoseTrustRatiosAreSlowInHost) {
  const CostModel costs = {.host_to_device = 1e10,
                           .device_to_host = 1e10,
                           .update_elements_per_second = 2e8,
                           .device_update_elements_per_second = 1e10,
                           .copy_latency_ns = 0};
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       PlanFor(LayersOf({.optimizer = OptimizerKind::kLamb}), 99 * kChunk, costs));
  EXPECT_EQ(plan.device_updates.size(), static_cast<size_t>(kLayers));
}

TEST(KeptGradientFormatsTest, OfQuantisedMomentsNoneStays) {
  const RangeTrace trace = LayersOf({.moments = MomentFormat::k8Bit});
  EXPECT_THAT(MayKeepGradients(trace), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       PlanFor(trace, 99 * kChunk, {}, {.kind = PolicyKind::kCuda}));
  EXPECT_THAT(plan.device_updates, IsEmpty());
}

}  // namespace
}  // namespace gemini::policies
