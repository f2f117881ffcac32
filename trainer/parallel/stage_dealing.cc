// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/stage_dealing.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "policies/pipeline/stage_split.h"
#include "trainer/families/sizes_of_spec.h"

namespace gemini::trainer {
namespace {

// Returns how much each part of the model computes for a token, as times. What is compared is the
// same on any machine. The longest is a second.
policies::StageTimes TimesOf(const ModelSpec& spec, int64_t sequence) {
  const policies::ModelSizes sizes = SizesOf(spec, sequence);
  std::vector<double> blocks;
  for (const policies::BlockSizes& block : sizes.blocks) blocks.push_back(block.flops_of_token());
  const double first = 2 * sizes.projection_parameters;
  const double last = first + 2 * sizes.head_parameters;
  const double longest = std::max(last, *std::ranges::max_element(blocks));
  const auto in_ns = [&](double part) { return static_cast<int64_t>(1e9 * part / longest); };
  policies::StageTimes times = {.block_ns = {}, .first_ns = in_ns(first), .last_ns = in_ns(last)};
  for (const double block : blocks) times.block_ns.push_back(in_ns(block));
  return times;
}

}  // namespace

absl::StatusOr<ModelStages> DealStages(const ModelSpec& spec, int64_t sequence,
                                       const PipelineSize& size, absl::string_view split) {
  const int64_t num_stages = size.ranks * size.chunks;
  const absl::StatusOr<std::vector<int64_t>> blocks =
      split.empty() ? policies::DealBlocks(TimesOf(spec, sequence), num_stages)
                    : policies::ParseStageSplit(split, spec.num_blocks, num_stages);
  if (!blocks.ok()) {
    return absl::Status(blocks.status().code(),
                        absl::StrCat(split.empty() ? "--pipeline" : "--pipeline-split", ": ",
                                     blocks.status().message()));
  }
  return ModelStages(size.ranks, *blocks);
}

}  // namespace gemini::trainer
