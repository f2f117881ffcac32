// SPDX-License-Identifier: Apache-2.0
// What a job knows about one of its phases: the round that was traced, the plan made from it, and
// how well rounds have followed that plan.
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
  std::shared_ptr<const BoundPlan> plan;  // Made from the trace. Null: to be requested.
  // Rounds in the trace's times; kAverageRounds stands for so many or more.
  int64_t averaged_rounds = 0;
  int64_t epoch = 0;       // The plan source's when they were begun.
  bool looked_up = false;  // Whether an earlier job's trace was asked for.
  int bad_rounds = 0;      // In a row.
  int rounds_to_skip = 0;
  int refusals = 0;  // Refusals of its plan, in a row.
  // Phase of the round after the last of this one, without evaluation.
  PlannedPhase* next = nullptr;
};

}  // namespace gemini::client
