// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/stage_dealing.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "policies/pipeline/stage_split.h"

namespace gemini::trainer {
namespace {

double FeedForward(const FeedForwardSpec& feed, int64_t width, int64_t inner) {
  return (feed.gated ? 3.0 : 2.0) * static_cast<double>(width) * static_cast<double>(inner);
}

double Block(const ModelSpec& spec, int64_t block, int64_t sequence) {
  const AttentionSpec& attention = spec.attention;
  const auto width = static_cast<double>(spec.width);
  const double query = static_cast<double>(attention.num_heads * attention.head_size);
  const double key = static_cast<double>(attention.num_kv_heads * attention.head_size);
  // A token sees half of the sequence before it, on the average, or its window.
  double seen = static_cast<double>(sequence) / 2;
  const int64_t window = spec.kinds[spec.KindOf(block)].window;
  if (window > 0) seen = std::min(seen, static_cast<double>(window));
  double sum = width * (2 * query + 2 * key) + 2 * query * seen;
  if (!spec.HasExperts(block)) {
    return sum + FeedForward(spec.feed_forward, spec.width, spec.feed_forward.width);
  }
  const ExpertsSpec& experts = *spec.experts;
  sum += width * static_cast<double>(experts.count);
  sum += static_cast<double>(experts.chosen) *
         FeedForward(spec.feed_forward, spec.width, experts.width);
  return sum + FeedForward(spec.feed_forward, spec.width, experts.shared_width);
}

// Returns how often each part of the model multiplies for a token, as times. What is compared is
// the same on any machine. The longest is a second.
policies::StageTimes TimesOf(const ModelSpec& spec, int64_t sequence) {
  std::vector<double> blocks;
  for (int64_t block = 0; block < spec.num_blocks; ++block) {
    blocks.push_back(Block(spec, block, sequence));
  }
  const auto width = static_cast<double>(spec.embedding_width);
  const double first = spec.has_projections() ? width * static_cast<double>(spec.width) : 0;
  const double last = first + width * static_cast<double>(spec.vocab_size);
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
