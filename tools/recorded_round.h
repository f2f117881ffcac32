// SPDX-License-Identifier: Apache-2.0
// Reads the round that a running job recorded last, and what its server planned it by, so that the
// same plan comes out again (gemini/wire.fbs, FindPlanInputs).
#pragma once
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/wire/connection.h"
#include "gemini/cost_model.h"
#include "gemini/plan/trace.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"

namespace gemini::tools {

struct RecordedRound {
  Trace trace = {};
  TierMap<int64_t> budget_bytes = {};
  int64_t chunk_bytes = 0;
  PolicyOptions policy;
  CostModel costs;
};

// Asks for the round of `phase` of the job that has `space` open; traces are kept by the name of
// its first one. Nothing: no plan was made of it yet, or others' traces took its room. May wait for
// the plans of others.
absl::StatusOr<std::optional<RecordedRound>> FindRecordedRound(client::Connection& server,
                                                               const std::string& space,
                                                               const std::string& first_space,
                                                               const std::string& phase);

}  // namespace gemini::tools
