// SPDX-License-Identifier: Apache-2.0
// Decides which GPU a rank computes on, and tells whether another rank has the same one.
// Pure: what the machine has is an argument (visible_gpus.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

// A rank's GPU.
struct RankGpu {
  int number = 0;         // As CUDA counts those that its process sees.
  std::string uuid;       // As nvidia-smi writes it, without the prefix.
  int64_t num_ranks = 1;  // That have it, this one included.
  // What was free of it before any of them took some, if that is known.
  std::optional<int64_t> free_bytes;
};

struct GpuWish {
  std::string device;      // --device: a GPU's name, or "cuda", which leaves it to the rank.
  bool shares = false;     // --share-gpu
  int64_t local_rank = 0;  // Of num_local_ranks on this machine.
  int64_t num_local_ranks = 1;
};

// Returns the number of the rank's GPU, as CUDA counts them, of `num_visible` that this process
// sees. "cuda" is the one with the rank's own number on its machine. A rank that sees one GPU alone
// has that one: its launcher may have shown it to no other. Ranks that share GPUs are dealt out in
// turn where there are fewer. NOT_FOUND: there is no such GPU, or there are too few.
absl::StatusOr<int> GpuOfRank(const GpuWish& wish, int64_t num_visible);

// `by_rank` has the UUIDs of the ranks' GPUs, "" of a rank on a CPU. INVALID_ARGUMENT: two ranks
// have one; names both.
absl::Status CheckGpusApart(const std::vector<std::string>& by_rank);

// Returns how many ranks have the GPU that `rank` has.
int64_t NumRanksOnGpu(const std::vector<std::string>& by_rank, int64_t rank);

}  // namespace gemini::trainer
