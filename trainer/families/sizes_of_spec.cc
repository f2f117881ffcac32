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

// A token is a residue of the first sequence: what is computed for each residue of an alignment, or
// for each pair, is computed as often for it as there are sequences or residues.
policies::BlockSizes PairBlockOf(const PairTrunkSpec& trunk, int64_t residues) {
  const double msa = Count(trunk.msa_width), pair = Count(trunk.pair_width);
  const double sequences = Count(trunk.num_sequences), per_pair = Count(residues);
  policies::BlockSizes block;
  const auto add = [&block](double in, double out, double share, bool leads_out = false) {
    block.matrices.push_back({.in = in, .out = out, .leads_out = leads_out, .token_share = share});
  };
  // Products without parameters, as FLOP of a token. They are counted as attention's.
  double flops = 0;
  const auto add_attention = [&](const AxialHeads& heads, double width, double share,
                                 double num_biases, double bias_share, double seen) {
    const double inner = Count(heads.num_heads) * Count(heads.head_size);
    if (num_biases > 0) add(pair, num_biases, bias_share);
    add(width, 4 * inner, share);
    add(inner, width, share, /*leads_out=*/true);
    flops += 4 * inner * seen * share;
  };
  const auto add_transition = [&](double width, double share) {
    add(width, Count(trunk.transition_factor) * width, share);
    add(Count(trunk.transition_factor) * width, width, share, /*leads_out=*/true);
  };
  const double outer = Count(trunk.outer_width), triangle = Count(trunk.triangle_width);
  const double msa_heads = Count(trunk.msa_heads.num_heads);
  const double triangle_heads = Count(trunk.triangle_heads.num_heads);
  add_attention(trunk.msa_heads, msa, sequences, msa_heads, per_pair, per_pair);
  add_attention(trunk.msa_heads, msa, sequences, 0, 0, sequences);
  add_transition(msa, sequences);
  add(msa, 2 * outer, sequences);
  flops += 2 * outer * outer * sequences * per_pair;
  add(outer * outer, pair, per_pair, /*leads_out=*/true);
  for (int i = 0; i < 2; ++i) {
    add(pair, 4 * triangle + pair, per_pair);
    flops += 2 * triangle * per_pair * per_pair;
    add(triangle, pair, per_pair, /*leads_out=*/true);
  }
  for (int i = 0; i < 2; ++i) {
    add_attention(trunk.triangle_heads, pair, per_pair, triangle_heads, per_pair, per_pair);
  }
  add_transition(pair, per_pair);
  block.query_width = msa_heads * Count(trunk.msa_heads.head_size);
  block.key_width = block.query_width;
  block.num_key_heads = trunk.msa_heads.num_heads;
  block.seen_tokens = flops / (4 * block.query_width);
  return block;
}

policies::ModelSizes SizesOfTrunk(const ModelSpec& spec, const PairTrunkSpec& trunk,
                                  int64_t residues) {
  policies::ModelSizes sizes;
  sizes.blocks.assign(static_cast<size_t>(spec.num_blocks), PairBlockOf(trunk, residues));
  const double msa = Count(trunk.msa_width), pair = Count(trunk.pair_width);
  sizes.width = Count(trunk.num_sequences) * msa + Count(residues) * pair;
  sizes.embedding_parameters =
      2 * Count(spec.vocab_size) * (msa + pair) + Count(2 * trunk.relative_positions + 1) * pair;
  sizes.head_parameters =
      spec.task.predicts_tokens() ? msa * Count(spec.vocab_size) : pair * Count(trunk.num_bins);
  sizes.tied_head = false;
  sizes.sharing = SharingWaysOf(spec);
  // These sizes do not say which layers ranks have whole, so that no search has them share any.
  sizes.sharing.in_lines = false;
  return sizes;
}

}  // namespace

policies::SharingWays SharingWaysOf(const ModelSpec& spec) {
  if (spec.attention.causal && spec.task.kind == TaskKind::kCausal) return {};
  // A line of ranks shares the layers of all tasks, and the sequences of texts between them.
  const bool has_texts = !spec.image.has_value() && !spec.pair_trunk.has_value();
  return {.in_grids = false, .between_layers = has_texts, .on_sequence_axis = false};
}

policies::ModelSizes SizesOf(const ModelSpec& spec, int64_t sequence) {
  if (spec.pair_trunk.has_value()) return SizesOfTrunk(spec, *spec.pair_trunk, sequence);
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
  sizes.copies_key_heads = spec.attention.layout == QueryKeyValueLayout::kApart;
  sizes.has_experts = spec.experts.has_value();
  sizes.sharing = SharingWaysOf(spec);
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
