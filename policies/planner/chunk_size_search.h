// SPDX-License-Identifier: Apache-2.0
// Which chunk size gives a trace the fastest round for little HOST memory. Of each octave the size
// that pads the tensors least is planned and simulated. Small chunks pay a copy's latency often;
// large ones carry what nobody uses, leave room in DEVICE that no chunk fits, and make the spare
// slots large. A power of two fits few models: a matrix of 6 MiB takes 8 MiB in chunks of 4 MiB, of
// each state.
// Source: the chunk-size search of PatrickStar (Fang et al., arXiv:2108.05818, section 8.1), which
//         counts utilisation alone; here inside an octave, and predicted time between octaves.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemini/cost_model.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"

namespace gemini::policies {

struct ChunkSizeSearchInputs {
  const Trace& trace;
  TierMap<int64_t> budget_bytes;  // As in PlanInputs.
  CostModel costs = {};
  PolicyOptions policy = {};
  // Powers of two >= kPageBytes, least <= most: the ends of the octaves.
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
  int64_t host_bytes = 0;     // Of all chunks and spare slots, if `status` is OK.
  Prediction prediction;      // If `status` is OK.
};

struct ChunkSizeChoice {
  Plan plan;                          // Of the chosen size.
  std::vector<TriedChunkSize> tried;  // Ascending.
};

// A size is lean that needs at most this much HOST more than the leanest, or kHostTieFraction of
// it.
inline constexpr int64_t kHostTieBytes = int64_t{32} << 20;
inline constexpr double kHostTieFraction = 0.0025;
// What a lean size may take longer: as much as predictions are wrong by (docs/benchmarks.md).
inline constexpr double kLeanTie = 0.02;
inline constexpr double kChunkSizeTie = 0.005;

// Chooses the fastest lean size, or the fastest of all if that is more than kLeanTie faster; of
// those within kChunkSizeTie of it the largest, which needs the fewest requests and words. Sizes
// are multiples of kPageBytes. INVALID_ARGUMENT: CheckTrace, or the ends are none.
// RESOURCE_EXHAUSTED: no size fits; as MakePlan says it of the size with the lowest floor.
absl::StatusOr<ChunkSizeChoice> SearchChunkSize(const ChunkSizeSearchInputs& inputs);

}  // namespace gemini::policies
