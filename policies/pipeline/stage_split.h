// SPDX-License-Identifier: Apache-2.0
// Decides how many of a model's blocks each stage of a pipeline has. A stage is a virtual one where
// ranks have several chunks (pipeline_schedule.h).
// Units:  nanoseconds, as integers, so that all ranks compute the same split.
// Pure: every rank computes the same split and asks nobody.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::policies {

// How long the parts of a model take with one micro-batch, forward and backward together.
struct StageTimes {
  std::vector<int64_t> block_ns;  // In the order of the model.
  int64_t first_ns = 0;           // What the first stage does before its blocks: the embeddings.
  int64_t last_ns = 0;            // What the last one does behind its: the last norm, head, loss.
};

// Returns the number of blocks of each stage, at least one each, so that the slowest stage is as
// fast as it can be; among such splits, the one whose stages' times differ least (the least sum of
// squares), and then the one that gives earlier stages more. A pipeline is as slow as its slowest
// stage; where ranks have several, this does not look at what they take together. INVALID_ARGUMENT:
// there are more stages than blocks, or a time is below 0, or they add up to more than a day.
absl::StatusOr<std::vector<int64_t>> DealBlocks(const StageTimes& times, int64_t num_stages);

// Returns the split that `text` spells, as in "5,7": the first stage has five of twelve blocks.
// INVALID_ARGUMENT: it has other than `num_stages` numbers, one below 1, or other than `num_blocks`
// in all; the message has them.
absl::StatusOr<std::vector<int64_t>> ParseStageSplit(absl::string_view text, int64_t num_blocks,
                                                     int64_t num_stages);

}  // namespace gemini::policies
