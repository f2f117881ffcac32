// SPDX-License-Identifier: Apache-2.0
// Where plans come from: the server, which keeps them with the space (client/session/session.h), or
// in tests the planner itself. Thread: any; both calls block for a reply.
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
  // Has a plan made for `device_bytes`, now. RESOURCE_EXHAUSTED: no plan fits (says at which
  // operator).
  virtual absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) = 0;
  // Finds the trace kept from an earlier job of the same tensors. Nothing: there is none.
  virtual absl::StatusOr<std::optional<Trace>> FindTrace(
      const std::string& phase, const std::vector<TracedTensor>& tensors) = 0;
  // Another number than before: what rounds before this moment measured is not how it goes on.
  virtual int64_t epoch() const { return 0; }
};

}  // namespace gemini::client
