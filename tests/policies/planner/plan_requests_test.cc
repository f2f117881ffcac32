// SPDX-License-Identifier: Apache-2.0
// Plan requests as no honest client makes them: small random traces whose numbers are moved to the
// ends of what their fields hold, with any costs and any budgets. Whatever is asked for, a plan
// comes out that CheckPlan passes, or a status; the sanitizers watch every sum.
// GEMINI_PLAN_REQUESTS: how many; 5,000 unless given. The shares of what came of them are printed.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

#include "gemini/plan/plan.h"
#include "gtest/gtest.h"
#include "policies/planner/planner.h"
#include "policies/simulator/host_playback.h"
#include "policies/trace/range_trace.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

class Requests {
 public:
  explicit Requests(uint64_t seed) : random_(seed) {}

  Trace DrawTrace() {
    RandomTraceOptions options = DrawOptions(random_(), /*spans=*/Chance(2));
    options.num_tensors = static_cast<int>(1 + random_() % 8);
    options.micro_batches = std::min(options.micro_batches, 2);
    Trace trace = RandomTrace(options, random_()).Make();
    // Most often a few numbers, so that others have a say, too.
    const uint64_t changes = Chance(3) ? 0 : random_() % 4;
    for (uint64_t i = 0; i < changes; ++i) Spoil(trace);
    return trace;
  }
  CostModel DrawCosts() {
    CostModel costs;
    if (Chance(2)) costs.device_update_elements_per_second = 0;
    for (double* rate :
         {&costs.host_to_device, &costs.device_to_host, &costs.nvme_read, &costs.nvme_write,
          &costs.update_elements_per_second, &costs.device_update_elements_per_second}) {
      if (Chance(20)) *rate = DrawRate();
    }
    if (Chance(10)) costs.copy_latency_ns = DrawEnd();
    return costs;
  }
  TierMap<int64_t> DrawBudgets(const RangeTrace& trace) {
    int64_t chunks = 0;
    for (const PlannedRange& range : trace.ranges) {
      chunks = std::min(chunks + range.num_bundles, int64_t{1} << 30);
    }
    const int64_t floor_bytes = std::min(DeviceFloorBytes(trace), int64_t{1} << 61);
    const auto some_bytes = [&] {
      return static_cast<int64_t>(random_() % (2 * chunks + 1)) * trace.chunk_bytes;
    };
    TierMap<int64_t> budgets;
    budgets[Tier::kDevice] =
        Chance(8) ? std::max<int64_t>(DrawEnd(), 0) : floor_bytes + some_bytes() / 4;
    budgets[Tier::kHost] = Chance(4)    ? kMost
                           : Chance(20) ? std::max<int64_t>(DrawEnd(), 0)
                                        : some_bytes();
    budgets[Tier::kNvme] = kMost;
    return budgets;
  }
  PolicyOptions DrawPolicy() {
    constexpr std::array<PolicyKind, 5> kKinds = {PolicyKind::kAuto, PolicyKind::kAuto,
                                                  PolicyKind::kStatic, PolicyKind::kCpu,
                                                  PolicyKind::kCuda};
    return {kKinds[random_() % kKinds.size()], static_cast<double>(random_() % 5) / 4,
            static_cast<double>(random_() % 5) / 4};
  }

 private:
  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }
  int64_t DrawEnd() {
    constexpr std::array<int64_t, 10> kEnds = {0,
                                               1,
                                               -1,
                                               kMost,
                                               kMost - 1,
                                               std::numeric_limits<int64_t>::min(),
                                               int64_t{1} << 60,
                                               int64_t{1} << 50,
                                               (int64_t{1} << 31) - 1,
                                               int64_t{1} << 32};
    return kEnds[random_() % kEnds.size()];
  }
  // Tensors of a million chunks take most of the time, so most ends are not theirs.
  int64_t DrawSize() {
    const int64_t size_bytes = DrawEnd();
    const bool is_large = size_bytes > int64_t{1} << 24 && size_bytes < int64_t{1} << 40;
    return is_large && !Chance(20) ? int64_t{1} << 20 : size_bytes;
  }
  double DrawRate() {
    constexpr std::array<double, 9> kRates = {0,
                                              -1,
                                              1e-300,
                                              1e3,
                                              1e14,
                                              1e300,
                                              std::numeric_limits<double>::infinity(),
                                              std::numeric_limits<double>::quiet_NaN(),
                                              1};
    return kRates[random_() % kRates.size()];
  }
  // Moves one number to an end, or near to where it was.
  void Spoil(Trace& trace) {
    const auto at = [&](auto& values) -> auto& { return values[random_() % values.size()]; };
    switch (random_() % 9) {
      case 0:
        at(trace.tensors).size_bytes = DrawSize();
        break;
      case 1:
        at(trace.operators).compute_ns = DrawEnd();
        break;
      case 2:
        at(trace.operators).num_uses = static_cast<int32_t>(DrawEnd());
        break;
      case 3:
        if (!trace.uses.empty()) at(trace.uses).tensor = static_cast<int32_t>(random_() % 9) - 1;
        break;
      case 4:
        if (!trace.gradient_outs.empty()) {
          at(trace.gradient_outs).position += static_cast<int32_t>(random_() % 3) - 1;
        }
        break;
      case 5:
        at(trace.tensors).states_on_nvme ^= true;
        break;
      case 6:
        trace.room_bytes.resize(trace.operators.size());
        if (!trace.room_bytes.empty()) at(trace.room_bytes) = DrawEnd();
        break;
      default:
        at(trace.operators).non_model_peak_bytes = DrawEnd();
    }
  }

  std::mt19937_64 random_;
};

TEST(PlanRequestsTest, WhateverIsAskedForAPlanOrAStatusComesOut) {
  const char* given = std::getenv("GEMINI_PLAN_REQUESTS");
  const int64_t num_requests = given != nullptr ? std::atoll(given) : 5'000;
  int64_t no_traces = 0, no_plans = 0, plans = 0, with_host = 0;
  for (int64_t i = 0; i < num_requests; ++i) {
    SCOPED_TRACE(i);
    Requests requests(/*seed=*/i);
    const absl::StatusOr<RangeTrace> trace = PackTrace(requests.DrawTrace(), kTestChunkBytes);
    if (!trace.ok()) {
      ASSERT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << trace.status();
      ++no_traces;
      continue;
    }
    const PlanInputs inputs = {.trace = *trace,
                               .budget_bytes = requests.DrawBudgets(*trace),
                               .costs = requests.DrawCosts(),
                               .policy = requests.DrawPolicy()};
    const absl::StatusOr<Plan> plan = MakePlan(inputs);
    if (!plan.ok()) {
      ASSERT_TRUE(plan.status().code() == absl::StatusCode::kInvalidArgument ||
                  plan.status().code() == absl::StatusCode::kResourceExhausted)
          << plan.status();
      ++no_plans;
      continue;
    }
    ++plans;
    ASSERT_OK(CheckPlan(*plan));
    ASSERT_LE(plan->prediction.device_peak_bytes, inputs.budget_bytes[Tier::kDevice]);
    ASSERT_GE(plan->prediction.round_ns, 0);
    if (!HostHoldsAll(*trace, inputs.budget_bytes[Tier::kHost])) ++with_host;
  }
  std::printf(
      "%lld requests: %lld plans, of which HOST and NVMe were played for %lld; %lld refused by the "
      "planner, %lld by the trace\n",
      static_cast<long long>(num_requests), static_cast<long long>(plans),
      static_cast<long long>(with_host), static_cast<long long>(no_plans),
      static_cast<long long>(no_traces));
  EXPECT_GE(plans, num_requests * 3 / 10);
  EXPECT_GE(with_host, num_requests / 10);
}

}  // namespace
}  // namespace gemini::policies
