// SPDX-License-Identifier: Apache-2.0
// Defines the interface that provides plans. In a session it is the server, which keeps the traces
// (client/session/server_plan_source.h); in tests it may be the planner itself.
// Thread: any; both calls block for a reply.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"

namespace gemini::client {

class PlanSource {
 public:
  virtual ~PlanSource() = default;
  // Requests a new plan for a DEVICE budget of `device_bytes`. RESOURCE_EXHAUSTED: no plan fits;
  // the message names the operator.
  virtual absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) = 0;
  // Finds the trace kept from an earlier job of the same tensors. Returns no value if there is
  // none.
  virtual absl::StatusOr<std::optional<Trace>> FindTrace(
      const std::string& phase, const std::vector<TracedTensor>& tensors) = 0;
  // Returns a number that changes when measurements of earlier rounds no longer show how rounds
  // will run.
  virtual int64_t epoch() const { return 0; }
};

}  // namespace gemini::client
