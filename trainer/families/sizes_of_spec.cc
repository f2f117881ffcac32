// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/sizes_of_spec.h"

#include <algorithm>
#include <numeric>

namespace gemini::trainer {
namespace {

double Count(int64_t number) { return static_cast<double>(number); }

// Adds the matrices of a feed-forward part, or of `copies` experts that are equal, which read what
// their router reads.
void AddFeedForward(const ModelSpec& spec, int64_t inner, double copies, double token_share,
                    bool is_expert, policies::BlockSizes& block) {
  if (inner == 0) return;
  // The results of a block's experts are added up, and then those of the ranks.
  const bool is_added = is_expert && block.matrices.back().leads_out;
  const bool gated = spec.feed_forward.gated;
  const double width = Count(spec.width);
  block.matrices.push_back({.in = width,
                            .out = (gated ? 2 : 1) * Count(inner),
                            .copies = copies,
                            .token_share = token_share,
                            .shares_exchange = is_expert});
  block.matrices.push_back({.in = Count(inner),
                            .out = width,
                            .leads_out = true,
                            .copies = copies,
                            .token_share = token_share,
                            .shares_exchange = is_added});
  const double chosen = Count(inner) * copies * token_share;
  if (gated) block.gated_width += chosen;
  // The gate is read, its activation written and read with the other, and their product written.
  block.moved_between += (gated ? 5 : 2) * chosen;
}

policies::BlockSizes BlockOf(const ModelSpec& spec, int64_t index, int64_t sequence) {
  const AttentionSpec& attention = spec.attention;
  const double width = Count(spec.width);
  policies::BlockSizes block;
  block.query_width = Count(attention.num_heads * attention.head_size);
  block.key_width = Count(attention.num_kv_heads * attention.head_size);
  block.num_key_heads = attention.num_kv_heads;
  if (spec.kinds[spec.KindOf(index)].rotary.has_value()) {
    block.moved_between += 2 * (block.query_width + block.key_width);
  }
  // A token sees all of the sequence, or on the average half of it before itself, or its window.
  block.seen_tokens = Count(sequence) / (attention.causal ? 2 : 1);
  const int64_t window = spec.kinds[spec.KindOf(index)].window;
  if (window > 0) block.seen_tokens = std::min(block.seen_tokens, Count(window));
  block.matrices.push_back({.in = width, .out = block.query_width});
  block.matrices.push_back({.in = width,
                            .out = 2 * block.key_width,
                            .shares_exchange = true,
                            .most_parts = attention.num_kv_heads});
  block.matrices.push_back({.in = block.query_width, .out = width, .leads_out = true});
  if (!spec.HasExperts(index)) {
    AddFeedForward(spec, spec.feed_forward.width, 1, 1, /*is_expert=*/false, block);
    return block;
  }
  const ExpertsSpec& experts = *spec.experts;
  block.matrices.push_back({.in = width, .out = Count(experts.count)});
  AddFeedForward(spec, experts.width, Count(experts.count),
                 Count(experts.chosen) / Count(experts.count), /*is_expert=*/true, block);
  AddFeedForward(spec, experts.shared_width, 1, 1, /*is_expert=*/true, block);
  return block;
}

}  // namespace

policies::ModelSizes SizesOf(const ModelSpec& spec, int64_t sequence) {
  policies::ModelSizes sizes;
  for (int64_t block = 0; block < spec.num_blocks; ++block) {
    sizes.blocks.push_back(BlockOf(spec, block, sequence));
  }
  sizes.width = Count(spec.width);
  sizes.embedding_parameters = Count(spec.vocab_size) * Count(spec.embedding_width);
  // A pooler is left out: it reads one token of a sequence, as the classifier does.
  sizes.head_parameters = spec.task.predicts_tokens()
                              ? sizes.embedding_parameters
                              : Count(spec.task.num_labels) * Count(spec.embedding_width);
  if (spec.image.has_value()) {
    sizes.embedding_parameters +=
        Count(spec.image->patch_elements() + spec.max_sequence) * sizes.width;
  }
  if (spec.positions.has_value()) {
    sizes.embedding_parameters += Count(spec.positions->rows) * sizes.width;
  }
  if (spec.has_projections()) {
    sizes.projection_parameters = Count(spec.embedding_width) * sizes.width;
  }
  sizes.tied_head = spec.tied_head;
  sizes.num_heads = spec.attention.num_heads;
  sizes.num_key_heads = spec.attention.num_kv_heads;
  sizes.has_experts = spec.experts.has_value();
  sizes.feed_width = 0;  // Of which all are divisors.
  for (int64_t block = 0; block < spec.num_blocks; ++block) {
    if (!spec.HasExperts(block)) {
      sizes.feed_width = std::gcd(sizes.feed_width, spec.feed_forward.width);
    } else {
      sizes.feed_width =
          std::gcd(std::gcd(sizes.feed_width, spec.experts->width), spec.experts->shared_width);
    }
  }
  return sizes;
}

}  // namespace gemini::trainer
