// SPDX-License-Identifier: Apache-2.0
// A PlanSource without a server.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/plan/plan_source.h"
#include "gemini/cost_model.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"

namespace gemini::client {

// Plans made here, as the server makes them.
class LocalPlans : public PlanSource {
 public:
  explicit LocalPlans(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) override {
    ++made_;
    auto packed = policies::PackTrace(trace, chunk_bytes_);
    if (!packed.ok()) return packed.status();
    policies::PlanInputs inputs = {
        .trace = *packed, .budget_bytes = {}, .costs = costs_, .policy = policy_};
    inputs.budget_bytes[Tier::kDevice] = device_bytes;
    inputs.budget_bytes[Tier::kHost] = host_bytes_;
    return policies::MakePlan(inputs);
  }
  absl::StatusOr<std::optional<Trace>> FindTrace(const std::string& phase,
                                                 const std::vector<TracedTensor>&) override {
    for (const Trace& trace : kept_) {
      if (trace.phase == phase) return std::optional<Trace>(trace);
    }
    return std::optional<Trace>();
  }
  void set_policy(PolicyOptions policy) { policy_ = policy; }
  void set_costs(const CostModel& costs) { costs_ = costs; }
  void set_host_bytes(int64_t host_bytes) { host_bytes_ = host_bytes; }
  int64_t epoch() const override { return epoch_; }
  void NextEpoch() { ++epoch_; }
  void Keep(Trace trace) { kept_.push_back(std::move(trace)); }
  int made() const { return made_; }

 private:
  const int64_t chunk_bytes_;
  PolicyOptions policy_;
  CostModel costs_;
  int64_t host_bytes_ = int64_t{1} << 40;
  std::vector<Trace> kept_;
  int made_ = 0;
  int64_t epoch_ = 0;
};

}  // namespace gemini::client
