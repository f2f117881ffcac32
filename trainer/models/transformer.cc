// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/transformer.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "trainer/models/classifier_head.h"
#include "trainer/models/counter_dropout.h"
#include "trainer/models/experts.h"
#include "trainer/models/feed_forward.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/recompute.h"
#include "trainer/models/row_attention.h"

namespace gemini::trainer {
namespace {

// The sites of dropout: the embedding, in each block three, and behind the blocks the head. The
// number of a site says which elements it drops, so it never changes.
constexpr int64_t kEmbeddingSite = 0;
enum class BlockSite { kAttentionWeights, kAttentionOut, kFeedOut };
int64_t SiteOf(int64_t block, BlockSite site) { return 1 + 3 * block + static_cast<int64_t>(site); }
int64_t SiteOfHead(const ModelSpec& spec) {
  return SiteOf(spec.num_blocks, BlockSite::kAttentionWeights);
}

// Drops elements of hidden states, or of their rows, as of [batch, sequence, width], of which x is
// a part. It is a part of each sequence's tokens, or it is one of sequences and of the width.
torch::Tensor DropFromPart(const torch::Tensor& x, const DropoutMask& mask, const HiddenPart& part,
                           int64_t sequence) {
  const int64_t width = x.size(-1) * part.width.count;
  if (part.tokens.count == 1) {
    if (part.sequences.count == 1 && part.width.count == 1) return DropOut(x, mask);
    const int64_t rows = x.numel() / x.size(-1);
    return DropOut(x, mask,
                   {.first = part.sequences.index * rows * width + part.width.index * x.size(-1),
                    .rows = rows,
                    .row_stride = width,
                    .row_size = x.size(-1)});
  }
  const int64_t num_slices = part.tokens.count * (part.zigzag ? 2 : 1);
  const int64_t size = sequence / num_slices * width;
  return DropOut(x, mask,
                 {.first = part.tokens.index * size,
                  .planes = x.numel() / (part.zigzag ? 2 * size : size),
                  .plane_stride = num_slices * size,
                  .rows = part.zigzag ? 2 : 1,
                  .row_stride = (num_slices - 1 - 2 * part.tokens.index) * size,
                  .row_size = size});
}

class TransformerBlock : public Block {
 public:
  TransformerBlock(const ModelSpec& spec, int64_t index, LayerSet& layers)
      : spec_(spec),
        index_(index),
        kind_(spec.KindOf(index)),
        part_(layers.hidden_part()),
        scale_(ScaleOf(spec.attention, index)) {
    const BlockNames& names = spec.layers.block;
    const int64_t width = spec.width;
    const auto norm = [&](const std::string& name) {
      return AddModule(*this, name, layers.Norm(spec.norm, width));
    };
    // Registered in the order of first use, which depends on where the norms are.
    const AttentionSpec& attention = spec.attention;
    const int64_t heads = attention.num_heads * attention.head_size;
    const int64_t kv_heads = attention.num_kv_heads * attention.head_size;
    const auto project = [&](const std::string& name, int64_t out, int64_t num_heads,
                             std::vector<int64_t> sections = {}) {
      return AddModule(*this, name,
                       layers.Linear({.in = width,
                                      .out = out,
                                      .bias = attention.bias,
                                      .layout = spec.block_matrices,
                                      .sections = std::move(sections),
                                      .heads = num_heads},
                                     Role::kQueryKeyValue));
    };
    if (!norms_after()) attention_norm_ = norm(names.attention_norm);
    input_ = layers.SharedInput();
    if (attention.layout == QueryKeyValueLayout::kApart) {
      query_key_value_ = {project(names.query, heads, attention.num_heads),
                          project(names.key, kv_heads, attention.num_kv_heads),
                          project(names.value, kv_heads, attention.num_kv_heads)};
    } else {
      std::vector<int64_t> sections;
      if (attention.layout == QueryKeyValueLayout::kJoined) sections = {heads, kv_heads, kv_heads};
      query_key_value_ = {project(names.query_key_value, heads + 2 * kv_heads,
                                  attention.num_kv_heads, std::move(sections))};
    }
    if (attention.head_norm.has_value()) {
      query_norm_ =
          AddModule(*this, names.query_norm, layers.HeadNorm(attention, attention.num_heads));
      key_norm_ =
          AddModule(*this, names.key_norm, layers.HeadNorm(attention, attention.num_kv_heads));
    }
    attend_ = layers.Attention(attention);
    attention_out_ =
        AddModule(*this, names.attention_out,
                  layers.Linear({heads, width, attention.out_bias, spec.block_matrices},
                                Role::kAttentionOut));
    if (norms_after()) attention_norm_ = norm(names.attention_norm);
    const bool sandwich = spec.order == BlockOrder::kSandwich;
    if (sandwich) attention_out_norm_ = norm(names.attention_out_norm);
    if (!norms_after() && spec.order != BlockOrder::kParallel) feed_norm_ = norm(names.feed_norm);
    if (spec.HasExperts(index)) {
      experts_ = AddModule(*this, names.experts.part, std::make_shared<Experts>(spec, layers));
    } else {
      feed_.emplace(*this, names.feed, spec.feed_forward, width, spec.block_matrices, layers);
    }
    if (norms_after()) feed_norm_ = norm(names.feed_norm);
    if (sandwich) feed_out_norm_ = norm(names.feed_out_norm);
  }

  Stream Forward(const Stream& stream, const BatchContext& context) override {
    Stream out = stream;
    switch (spec_.order) {
      case BlockOrder::kNormsBefore:
      case BlockOrder::kNormsAfter:
      case BlockOrder::kSandwich:
        out.hidden = ForwardInTurn(stream.hidden, context, out.router_sums);
        break;
      case BlockOrder::kParallel:
        out.hidden = ForwardInParallel(stream.hidden, context, out.router_sums);
        break;
      case BlockOrder::kParallelTwoNorms:
        out.hidden = ForwardWithTwoNorms(stream.hidden, context, out.router_sums);
        break;
    }
    return out;
  }

 private:
  static double ScaleOf(const AttentionSpec& attention, int64_t index) {
    return attention.divides_scale_by_depth ? attention.scale / static_cast<double>(index + 1)
                                            : attention.scale;
  }

  bool norms_after() const { return spec_.order == BlockOrder::kNormsAfter; }

  // These three return the next hidden tensor, and add to the router's sums.
  torch::Tensor ForwardInTurn(const torch::Tensor& hidden, const BatchContext& context,
                              torch::Tensor& router_sums) {
    const std::vector<torch::Tensor> parts =
        Project(Share(norms_after() ? hidden : attention_norm_->Forward(hidden)));
    torch::Tensor attended = Attend(parts, context);
    if (attention_out_norm_) attended = attention_out_norm_->Forward(attended);
    torch::Tensor middle = hidden + attended;
    if (norms_after()) middle = attention_norm_->Forward(middle);

    const torch::Tensor rows = middle.reshape({-1, middle.size(-1)});
    torch::Tensor fed =
        ShareAndFeed(norms_after() ? rows : feed_norm_->Forward(rows), context, router_sums);
    if (feed_out_norm_) fed = feed_out_norm_->Forward(fed);
    const torch::Tensor out = (rows + fed).view(hidden.sizes());
    return norms_after() ? feed_norm_->Forward(out) : out;
  }

  torch::Tensor ForwardInParallel(const torch::Tensor& hidden, const BatchContext& context,
                                  torch::Tensor& router_sums) {
    // Families with experts have no such blocks: their router would read what is shared.
    torch::Tensor normed = Share(attention_norm_->Forward(hidden));
    const torch::Tensor middle = hidden + Attend(Project(normed), context);
    // Parts of sequences, put together, come apart as they are.
    if (part_.tokens.count == 1) normed = normed.reshape({-1, normed.size(-1)});
    return middle + Feed(std::move(normed), context, router_sums).view(hidden.sizes());
  }

  torch::Tensor ForwardWithTwoNorms(const torch::Tensor& hidden, const BatchContext& context,
                                    torch::Tensor& router_sums) {
    const torch::Tensor attended =
        Attend(Project(Share(attention_norm_->Forward(hidden))), context);
    const torch::Tensor rows = hidden.reshape({-1, hidden.size(-1)});
    const torch::Tensor fed = ShareAndFeed(feed_norm_->Forward(rows), context, router_sums);
    return fed.view(hidden.sizes()) + attended + hidden;
  }

  // Returns what attention adds to the residual, for what Project returned.
  torch::Tensor Attend(const std::vector<torch::Tensor>& parts, const BatchContext& context) {
    const AttentionSpec& attention = spec_.attention;
    // Here and in Feed dropout is a statement of its own: what was read before it is released by
    // then.
    const torch::Tensor attended = attention_out_->Forward(attend_->Forward(
        parts[0], parts[1], parts[2], context.angles[kind_],
        {.scale = attention.scales_query ? 1.0 : scale_,
         .causal = attention.causal,
         .window = spec_.kinds[kind_].window,
         .soft_cap = attention.soft_cap,
         .dropout = MaskOf(context.dropout, SiteOf(index_, BlockSite::kAttentionWeights),
                           attention.dropout),
         .documents = context.documents}));
    return DropFrom(attended, context, BlockSite::kAttentionOut);
  }

  // Returns what linear layers read that read x. It leaves nothing of x in the caller's argument,
  // which lives as long as the expression with the call.
  torch::Tensor Share(torch::Tensor x) const {
    if (input_) x = input_->Forward(x);
    return x;
  }
  torch::Tensor ShareAndFeed(torch::Tensor in, const BatchContext& context,
                             torch::Tensor& router_sums) {
    return Feed(experts_ ? std::move(in) : Share(std::move(in)), context, router_sums);
  }
  // Returns what the feed-forward part adds, for rows [.., width]. Experts share these themselves.
  torch::Tensor Feed(torch::Tensor in, const BatchContext& context, torch::Tensor& router_sums) {
    const torch::Tensor fed = experts_ ? experts_->Forward(in, context.experts, router_sums)
                                       : feed_->Forward(std::move(in));
    return DropFrom(fed, context, BlockSite::kFeedOut);
  }

  torch::Tensor DropFrom(const torch::Tensor& x, const BatchContext& context,
                         BlockSite site) const {
    return DropFromPart(x, MaskOf(context.dropout, SiteOf(index_, site), spec_.residual_dropout),
                        part_, context.sequence);
  }

  // Returns query [..., heads, head size], and key and value [..., KV heads, head size].
  std::vector<torch::Tensor> Project(const torch::Tensor& x) const {
    const AttentionSpec& attention = spec_.attention;
    std::vector<torch::Tensor> parts;
    for (const std::shared_ptr<Layer>& layer : query_key_value_) {
      const bool by_head = attention.layout == QueryKeyValueLayout::kByHead;
      const int64_t size = by_head ? 3 * attention.head_size : attention.head_size;
      parts.push_back(layer->Forward(x).unflatten(-1, {-1, size}));
      if (by_head) {
        parts = parts[0].split(attention.head_size, /*dim=*/-1);
      } else if (attention.layout == QueryKeyValueLayout::kJoined) {
        const int64_t per_kv_head = attention.num_heads / attention.num_kv_heads;
        const int64_t kv_heads = parts[0].size(-2) / (per_kv_head + 2);
        parts = parts[0].split_with_sizes({per_kv_head * kv_heads, kv_heads, kv_heads},
                                          /*dim=*/-2);
      }
      // Before the key is computed, so that the query itself is released first.
      if (&layer == &query_key_value_.front() && attention.scales_query) {
        parts[0] = parts[0] * scale_;
      }
    }
    if (query_norm_) {
      parts[0] = query_norm_->Forward(parts[0]);
      parts[1] = key_norm_->Forward(parts[1]);
    }
    return parts;
  }

  const ModelSpec spec_;
  const int64_t index_;  // Among the model's blocks.
  const size_t kind_;    // Of spec_.kinds.
  const HiddenPart part_;
  const double scale_;
  std::shared_ptr<Layer> attention_norm_;
  std::shared_ptr<Layer> input_;  // Of the linear layers. Null where there is nothing to do.
  std::vector<std::shared_ptr<Layer>> query_key_value_;  // One, or one each.
  std::shared_ptr<Layer> query_norm_;  // Null, as key_norm_ is, where heads are not normed.
  std::shared_ptr<Layer> key_norm_;
  std::shared_ptr<HeadAttention> attend_;
  std::shared_ptr<Layer> attention_out_;
  std::shared_ptr<Layer> attention_out_norm_;  // Null but in a sandwich.
  std::shared_ptr<Layer> feed_norm_;           // Null where both parts share a norm.
  std::optional<FeedForward> feed_;            // One of these two.
  std::shared_ptr<Experts> experts_;
  std::shared_ptr<Layer> feed_out_norm_;  // Null but in a sandwich.
};

}  // namespace

Transformer::Transformer(const ModelSpec& spec, LayerSet& layers)
    : spec_(spec), part_(layers.hidden_part()) {
  const LayerNames& names = spec.layers;
  if (spec.image.has_value()) {
    image_tokens_ =
        AddModule(*this, names.image_tokens, layers.ImageTokens(*spec.image, spec.width));
    patches_ = AddModule(*this, names.patches, layers.Patches(*spec.image, spec.width));
  } else {
    token_embedding_ =
        AddModule(*this, names.token_embedding,
                  layers.TokenEmbedding(spec.vocab_size, spec.embedding_width, spec.padding_token));
  }
  if (spec.num_token_types > 0) {
    type_embedding_ = AddModule(*this, names.type_embedding,
                                layers.PositionEmbedding(spec.num_token_types, spec.width));
  }
  if (spec.positions.has_value()) {
    position_embedding_ = AddModule(*this, names.position_embedding,
                                    layers.PositionEmbedding(spec.positions->rows, spec.width));
  }
  if (spec.has_projections()) {
    project_in_ = AddModule(*this, names.project_in,
                            layers.Linear({spec.embedding_width, spec.width}, Role::kProjectIn));
  }
  if (spec.embedding_norm) {
    embedding_norm_ = AddModule(*this, names.embedding_norm, layers.Norm(spec.norm, spec.width));
  }
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    blocks_.push_back(AddModule(*this, absl::StrCat(names.blocks, ".", i),
                                std::make_shared<TransformerBlock>(spec, i, layers)));
  }
  if (spec.final_norm) {
    final_norm_ = AddModule(*this, names.final_norm, layers.Norm(spec.norm, spec.width));
  }
  if (spec.has_projections()) {
    project_out_ = AddModule(*this, names.project_out,
                             layers.Linear({spec.width, spec.embedding_width}, Role::kProjectOut));
  }
  if (!spec.task.predicts_tokens()) {
    head_ = std::make_unique<ClassifierHead>(*this, spec, layers, SiteOfHead(spec));
    return;
  }
  auto token_head = std::make_unique<TokenHead>(*this, spec, layers, token_embedding_);
  token_head_ = token_head.get();
  head_ = std::move(token_head);
}

torch::Tensor Transformer::PositionRows(const torch::Tensor& tokens) const {
  const int64_t first = spec_.positions->first_row;
  if (documents() != nullptr) {
    return documents()->Positions(tokens.size(1)).add_(first).to(tokens.device());
  }
  // Made before it is filled: arange itself would not take memory on the meta device.
  torch::Tensor rows =
      at::empty({tokens.size(1)}, torch::dtype(torch::kInt64).device(tokens.device()));
  at::arange_out(rows, first, first + tokens.size(1), 1);
  rows = rows.unsqueeze(0);
  return spec_.positions->for_each_sequence ? rows.expand({tokens.size(0), -1}) : rows;
}

Stream Transformer::Embed(const Batch& batch) {
  const bool are_images = spec_.image.has_value();
  const int64_t sequence = are_images ? spec_.max_sequence : batch.inputs.size(1);
  const torch::Tensor embedded = are_images ? EmbedImages(batch.inputs) : EmbedTokens(batch);
  return {.hidden =
              DropFromPart(embedded, MaskOf(dropout(), kEmbeddingSite, spec_.embedding_dropout),
                           part_, sequence)};
}

torch::Tensor Transformer::EmbedImages(const torch::Tensor& pixels) {
  return image_tokens_->Forward(patches_->Forward(pixels));
}

torch::Tensor Transformer::EmbedTokens(const Batch& batch) {
  const torch::Tensor& tokens = batch.inputs;
  // One after the other: the order of first use is the order of the parameters.
  torch::Tensor embedded = token_embedding_->Forward(tokens);
  if (spec_.embedding_scale != 1) {
    embedded = embedded * torch::scalar_tensor(spec_.embedding_scale, embedded.options());
  }
  if (type_embedding_) {
    const torch::Tensor types =
        batch.types.defined() ? batch.types : at::zeros(tokens.sizes(), tokens.options());
    embedded = embedded + type_embedding_->Forward(types);
  }
  torch::Tensor placed;
  if (position_embedding_) placed = position_embedding_->Forward(PositionRows(tokens));
  if (project_in_) embedded = project_in_->Forward(embedded);
  if (position_embedding_) embedded = embedded + placed;
  placed.reset();  // Before the norm takes memory.
  return embedding_norm_ ? embedding_norm_->Forward(embedded) : embedded;
}

BatchContext Transformer::ContextOf(const torch::Tensor& hidden) const {
  SharedDocuments own = documents();
  const int64_t sequence = hidden.size(1) * part_.tokens.count;
  const int64_t longest = own != nullptr ? own->longest() : sequence;
  const EqualPart& rows = part_.inner_sequences;
  if (own != nullptr && rows.count > 1) {
    own =
        std::make_shared<RowDocuments>(own->RowsFrom(rows.index * hidden.size(0), hidden.size(0)));
  }
  BatchContext context = MakeBatchContext(spec_.kinds, spec_.attention.head_size, sequence, longest,
                                          hidden.options(), std::move(own));
  context.experts = routing();
  context.dropout = dropout();
  return context;
}

HeadInput Transformer::Finish(torch::Tensor hidden, const BatchContext& context) const {
  if (final_norm_) hidden = final_norm_->Forward(hidden);
  if (project_out_) hidden = project_out_->Forward(hidden);
  return {std::move(hidden), context.documents, context.dropout};
}

torch::Tensor Transformer::Head(const Stream& last, const BatchContext& context) {
  return head_->Logits(Finish(last.hidden, context));
}

BatchLoss Transformer::LossOf(Stream last, const BatchContext& context, const Labels& labels,
                              const LossFactors& factors) {
  BatchLoss loss = head_->LossOf(Finish(std::move(last.hidden), context), labels, factors);
  if (last.router_sums.defined()) {
    loss.router = RouterLoss(token_head_->RouterSums(last.router_sums), *spec_.experts);
    loss.router_coefficient = *spec_.experts->router_loss_coefficient;
  }
  return loss;
}

}  // namespace gemini::trainer
