// SPDX-License-Identifier: Apache-2.0
// Finds the chunk size that gives a trace the fastest round for little HOST memory. In each octave
// the size that pads the tensors least is planned and simulated. Small chunks pay a copy's latency
// often. Large chunks move bytes that nothing uses, leave room in DEVICE that no chunk fits, and
// make the spare slots large. A power of two fits few models: a matrix of 6 MiB takes 8 MiB of each
// state in chunks of 4 MiB.
// Source: the chunk-size search of PatrickStar (Fang et al., arXiv:2108.05818, section 8.1), which
// counts utilisation alone. Here that decides inside an octave, and predicted time between octaves.
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
  // Sizes that need more bundles are left out, because a plan of them takes long, and so does each
  // round.
  int64_t max_bundles = 20'000;
};

struct TriedChunkSize {
  int64_t chunk_bytes = 0;
  absl::Status status;  // RESOURCE_EXHAUSTED: below the floor, or too many bundles.
  int64_t num_bundles = 0;
  int64_t padding_bytes = 0;  // Bytes of the param chunks that no tensor uses.
  int64_t host_bytes = 0;     // For all chunks and spare slots, if `status` is OK.
  Prediction prediction;      // If `status` is OK.
};

struct ChunkSizeChoice {
  Plan plan;                          // For the chosen size.
  std::vector<TriedChunkSize> tried;  // Ascending.
};

// A size is lean if it needs at most this much HOST more than the leanest, or kHostTieFraction of
// it.
inline constexpr int64_t kHostTieBytes = int64_t{32} << 20;
inline constexpr double kHostTieFraction = 0.0025;
// How much longer a lean size may take, as a share: the error of predictions (docs/benchmarks.md).
inline constexpr double kLeanTie = 0.02;
inline constexpr double kChunkSizeTie = 0.005;

// Chooses the fastest lean size, or the fastest of all if that is more than kLeanTie faster. Among
// those within kChunkSizeTie of it, it takes the largest, which needs the fewest requests and
// words. Sizes are multiples of kPageBytes. INVALID_ARGUMENT: as CheckTrace, or the ends are no
// octaves'. RESOURCE_EXHAUSTED: no size fits; the message is MakePlan's for the size with the
// lowest floor.
absl::StatusOr<ChunkSizeChoice> SearchChunkSize(const ChunkSizeSearchInputs& inputs);

}  // namespace gemini::policies
