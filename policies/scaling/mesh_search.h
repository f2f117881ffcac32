// SPDX-License-Identifier: Apache-2.0
// Finds how a given number of ranks trains a model fastest: tries the meshes that divide them, with
// the micro-batches, stages of ZeRO and recomputation that fit into memory.
// Limits: groups that share layers or sequences have at most kMostSharing ranks, and a rank of a
//         pipeline at most kMostChunks chunks.
// Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/scaling/parallel_step.h"

namespace gemini::policies {

inline constexpr int64_t kMostSharing = 64;
inline constexpr int64_t kMostChunks = 4;

struct FoundMesh {
  ParallelRun run;
  StepForecast forecast;
};

// Returns "pp 8 x dp 4 x sp 1 x tp 8, pipeline and 1d, ZeRO 1, 16 x 2 sequences".
std::string DescribeMesh(const ParallelRun& run);

struct MeshSearch {
  // The fastest meshes that fit, the first one first, at most as many as asked for.
  std::vector<FoundMesh> best;
  // The fastest that fits of each way of sharing that was tried, in the order of their speed.
  struct Kind {
    std::string name;  // "data alone", "1d", "pipeline and 1d", ...
    FoundMesh found;
  };
  std::vector<Kind> kinds;
  int64_t num_divide = 0;     // Meshes with their micro-batches that divide.
  int64_t num_too_large = 0;  // Those of them that do not fit in any way.
  // That which lacks the least, if none fits.
  std::vector<FoundMesh> nearest;
};

// Runs are like `like` in their sequence, in all bytes, and in what is ahead or hides.
// `step_sequences` is how many a step takes in all. INVALID_ARGUMENT: a count is below 1.
absl::StatusOr<MeshSearch> SearchMeshes(const ModelSizes& model, const RankMachine& machine,
                                        const ParallelRun& like, int64_t num_ranks,
                                        int64_t step_sequences, size_t num_best);

}  // namespace gemini::policies
