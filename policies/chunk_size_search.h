// SPDX-License-Identifier: Apache-2.0
// Which chunk size gives a trace the fastest round: every power of two in a range is planned and
// simulated. Small chunks pay a copy's latency often; large ones carry what nobody uses, and leave room
// in DEVICE that no chunk fits.
// Source: the chunk-size search of PatrickStar (Fang et al., arXiv:2108.05818, section 8.1), by predicted
//         time in place of utilisation.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemini/cost_model.h"
#include "gemini/plan.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"
#include "gemini/trace.h"

namespace gemini::policies {

struct ChunkSizeSearchInputs {
  const Trace& trace;
  TierMap<int64_t> budget_bytes;  // As in PlanInputs.
  CostModel costs = {};
  PolicyOptions policy = {};
  // Powers of two >= kPageBytes, least <= most.
  int64_t least_chunk_bytes = int64_t{64} << 10;
  int64_t most_chunk_bytes = int64_t{64} << 20;
  // Sizes that would need more are left out: a plan of them takes long, and so does each round.
  int64_t max_bundles = 20'000;
};

struct TriedChunkSize {
  int64_t chunk_bytes = 0;
  absl::Status status;  // RESOURCE_EXHAUSTED: below the floor, or too many bundles.
  int64_t num_bundles = 0;
  int64_t padding_bytes = 0;  // Of the bundles' param chunks, what is no tensor's.
  Prediction prediction;      // If `status` is OK.
};

struct ChunkSizeChoice {
  Plan plan;                          // Of the chosen size.
  std::vector<TriedChunkSize> tried;  // Ascending.
};

// Chooses the size with the fastest predicted round; among those within kChunkSizeTie of it the largest,
// which needs the fewest requests and words. INVALID_ARGUMENT: CheckTrace, or the sizes are none.
// RESOURCE_EXHAUSTED: no size fits; as MakePlan says it of the size with the lowest floor.
inline constexpr double kChunkSizeTie = 0.005;  // Predictions are not that exact.
absl::StatusOr<ChunkSizeChoice> SearchChunkSize(const ChunkSizeSearchInputs& inputs);

}  // namespace gemini::policies
