// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/parameter_count.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"

namespace gemini::trainer {
namespace {

using Count = absl::int128;  // A hostile config's product is larger than int64_t.

Count Linear(Count in, Count out, bool bias) { return in * out + (bias ? out : Count(0)); }

Count Norm(const NormSpec& norm, int64_t width) {
  if (!norm.affine) return 0;
  return norm.kind == NormKind::kLayer && norm.bias ? 2 * width : width;
}

Count Attention(const AttentionSpec& attention, int64_t width) {
  const Count size = attention.head_size;
  const Count heads = attention.num_heads, kv_heads = attention.num_kv_heads;
  Count sum = Linear(width, (heads + 2 * kv_heads) * size, attention.bias) +
              Linear(heads * size, width, attention.out_bias);
  if (attention.head_norm.has_value()) {
    sum += attention.norms_heads_apart ? (heads + kv_heads) * size
                                       : 2 * Norm(*attention.head_norm, attention.head_size);
  }
  return sum;
}

// `inner`: between its two matrices.
Count FeedForward(const FeedForwardSpec& feed, int64_t width, int64_t inner) {
  return (feed.gated ? 2 : 1) * Linear(width, inner, feed.bias) + Linear(inner, width, feed.bias);
}

Count Experts(const ExpertsSpec& experts, const FeedForwardSpec& feed, int64_t width) {
  Count sum = Linear(width, experts.count, /*bias=*/false) +
              experts.count * FeedForward(feed, width, experts.width);
  if (experts.shared_width > 0) {
    sum += FeedForward(feed, width, experts.shared_width) + Linear(width, 1, /*bias=*/false);
  }
  return sum;
}

int64_t NormsOf(BlockOrder order) {
  switch (order) {
    case BlockOrder::kParallel:
      return 1;
    case BlockOrder::kNormsBefore:
    case BlockOrder::kNormsAfter:
    case BlockOrder::kParallelTwoNorms:
      return 2;
    case BlockOrder::kSandwich:
      return 4;
  }
  return 0;
}

Count Head(const ModelSpec& spec) {
  const Count width = spec.embedding_width;
  if (!spec.task.predicts_tokens()) {
    const Count pooler = spec.classifier->input == ClassifierInput::kPooledFirstToken
                             ? Linear(width, width, true)
                             : 0;
    return pooler + Linear(width, spec.task.num_labels, spec.classifier->bias);
  }
  Count sum = spec.tied_head ? Count(0) : width * spec.vocab_size;
  if (spec.head_bias) sum += spec.vocab_size;
  if (spec.head_transform.has_value()) {
    sum += Linear(width, width, true) + Norm(spec.norm, spec.embedding_width);
  }
  return sum;
}

int64_t Capped(const Count& sum) {
  return static_cast<int64_t>(std::min<Count>(sum, std::numeric_limits<int64_t>::max()));
}

Count AxialAttention(const AxialHeads& heads, Count width, bool has_bias_norm, Count bias_width) {
  const Count inner = heads.num_heads * heads.head_size;
  return 2 * width + (has_bias_norm ? 2 * bias_width : Count(0)) + bias_width * heads.num_heads +
         3 * Linear(width, inner, false) + Linear(width, inner, true) + Linear(inner, width, true);
}

Count Transition(const PairTrunkSpec& trunk, Count width) {
  const Count inner = trunk.transition_factor * width;
  return 2 * width + Linear(width, inner, true) + Linear(inner, width, true);
}

Count TriangleProduct(const PairTrunkSpec& trunk) {
  const Count pair = trunk.pair_width, width = trunk.triangle_width;
  return 2 * pair + 4 * Linear(pair, width, true) + 2 * width + Linear(width, pair, true) +
         Linear(pair, pair, true);
}

Count PairBlock(const PairTrunkSpec& trunk) {
  const Count msa = trunk.msa_width, pair = trunk.pair_width, outer = trunk.outer_width;
  return AxialAttention(trunk.msa_heads, msa, /*has_bias_norm=*/true, pair) +
         AxialAttention(trunk.msa_heads, msa, /*has_bias_norm=*/false, 0) + Transition(trunk, msa) +
         2 * msa + 2 * Linear(msa, outer, true) + Linear(outer * outer, pair, true) +
         2 * TriangleProduct(trunk) +
         2 * AxialAttention(trunk.triangle_heads, pair, /*has_bias_norm=*/false, pair) +
         Transition(trunk, pair);
}

Count PairTrunk(const ModelSpec& spec, const PairTrunkSpec& trunk) {
  const Count tables = 2 * Count(spec.vocab_size) * (trunk.msa_width + trunk.pair_width) +
                       Count(2 * trunk.relative_positions + 1) * trunk.pair_width;
  const Count head = spec.task.predicts_tokens() ? Linear(trunk.msa_width, spec.vocab_size, true)
                                                 : Linear(trunk.pair_width, trunk.num_bins, true);
  return tables + spec.num_blocks * PairBlock(trunk) + head;
}

}  // namespace

int64_t NumParameters(const ModelSpec& spec) {
  if (spec.pair_trunk.has_value()) return Capped(PairTrunk(spec, *spec.pair_trunk));
  const Count embedding_width = spec.embedding_width;
  Count sum = spec.vocab_size * embedding_width;
  if (spec.image.has_value()) {
    sum += Linear(spec.image->patch_elements(), spec.width, /*bias=*/true);
    sum += Count(1 + spec.max_sequence) * spec.width;  // The class token, and the table.
  }
  if (spec.positions.has_value()) sum += Count(spec.positions->rows) * spec.width;
  sum += Count(spec.num_token_types) * spec.width;
  if (spec.embedding_norm) sum += Norm(spec.norm, spec.width);
  if (spec.has_projections()) sum += 2 * embedding_width * spec.width;
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    sum +=
        NormsOf(spec.order) * Norm(spec.norm, spec.width) + Attention(spec.attention, spec.width) +
        (spec.HasExperts(i) ? Experts(*spec.experts, spec.feed_forward, spec.width)
                            : FeedForward(spec.feed_forward, spec.width, spec.feed_forward.width));
  }
  if (spec.final_norm) sum += Norm(spec.norm, spec.width);
  sum += Head(spec);
  return Capped(sum);
}

}  // namespace gemini::trainer
