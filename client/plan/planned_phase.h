// SPDX-License-Identifier: Apache-2.0
// What a job knows of one of its phases: the round that was traced, the plan that was made of it,
// and how well rounds have followed that.
// Thread: none of its own; the phase tracker locks.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/plan/plan_binding.h"
#include "gemini/plan/trace.h"

namespace gemini::client {

struct PlannedPhase {
  std::string name;
  std::optional<Trace> trace;
  std::shared_ptr<const BoundPlan> plan;  // Of the trace. Null: to be asked for.
  int64_t averaged_rounds = 0;            // In the trace's times; kAverageRounds: so many or more.
  int64_t epoch = 0;                      // Of the plan source, when they were begun.
  bool looked_up = false;                 // Whether an earlier job's trace was asked for.
  int bad_rounds = 0;                     // In a row.
  int rounds_to_skip = 0;
  int refusals = 0;              // Of its plan, in a row.
  PlannedPhase* next = nullptr;  // Of the round behind the last of this one, evaluation left out.
};

}  // namespace gemini::client
