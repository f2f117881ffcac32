// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/sequence_layers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "trainer/models/attention.h"
#include "trainer/models/plain_layers.h"
#include "trainer/parallel/ring_attention.h"
#include "trainer/parallel/tensor_functions_1d.h"
#include "trainer/parallel/ulysses_functions.h"
#include "trainer/parallel/wrapped_layer.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

// Returns a part's tokens of x, which are along that dimension.
Tensor TokensOfPart(const Tensor& x, int64_t dimension, const HiddenPart& part) {
  std::vector<Tensor> slices;
  for (const TokenSlice& slice : SlicesOfPart(part.tokens, part.zigzag, x.size(dimension))) {
    slices.push_back(x.narrow(dimension, slice.position, slice.count));
  }
  return slices.size() == 1 ? slices[0] : at::cat(slices, dimension);
}

class TableOfPart : public WrappedLayer<VocabularyTable> {
 public:
  TableOfPart(std::shared_ptr<VocabularyTable> table, const HiddenPart& part)
      : WrappedLayer(std::move(table)), part_(part) {}
  Tensor Forward(const Tensor& ids) const override {
    return inner().Forward(TokensOfPart(ids, -1, part_).contiguous());
  }
  std::vector<Tensor> blocks() const override { return inner().blocks(); }

 private:
  const HiddenPart part_;
};

class PositionsOfPart : public WrappedLayer<Layer> {
 public:
  PositionsOfPart(std::shared_ptr<Layer> table, const HiddenPart& part)
      : WrappedLayer(std::move(table)), part_(part) {}
  Tensor Forward(const Tensor& ids) const override {
    return inner().Forward(TokensOfPart(ids, -1, part_));
  }

 private:
  const HiddenPart part_;
};

// It gives the heads that this rank has of all tokens, and takes what came of them, to Torch's
// attention or to ours.
class UlyssesAttention : public HeadAttention {
 public:
  UlyssesAttention(const RankLine& line, int64_t first_head, int64_t all_heads)
      : line_(line), first_head_(first_head), all_heads_(all_heads) {}
  Tensor Forward(const Tensor& query, const Tensor& key, const Tensor& value,
                 const HeadAngles& angles, const RowAttentionOptions& options) const override {
    const int64_t head_size = query.size(-1);
    // Where there are fewer heads of keys than ranks, several ranks get one.
    const int64_t copies = std::max<int64_t>(line_.size() / key.size(2), 1);
    const std::vector<Tensor> heads = {query, key.repeat_interleave(copies, 2),
                                       value.repeat_interleave(copies, 2)};
    // One exchange of what each rank is to have of all three.
    std::vector<Tensor> parts;
    std::vector<int64_t> widths;
    for (const Tensor& x : heads) {
      parts.push_back(x.flatten(2).unflatten(2, {line_.size(), -1}));
      widths.push_back(parts.back().size(-1));
    }
    const Tensor mine = WholeTokens(at::cat(parts, /*dim=*/-1).flatten(2), line_);
    std::vector<Tensor> own = mine.split_with_sizes(widths, /*dim=*/-1);
    for (Tensor& x : own) x = x.unflatten(-1, {-1, head_size});
    RowAttentionOptions of_heads = options;
    of_heads.first_head = first_head_ + line_.place() * own[0].size(2);
    of_heads.all_heads = all_heads_;
    return WholeWidth(SelfAttention(own[0], own[1], own[2], angles, of_heads), line_);
  }

 private:
  const RankLine line_;
  const int64_t first_head_;
  const int64_t all_heads_;
};

class RingOfHeads : public HeadAttention {
 public:
  RingOfHeads(const RankLine& line, const HiddenPart& part, int64_t first_head, int64_t all_heads)
      : line_(line), part_(part), first_head_(first_head), all_heads_(all_heads) {}
  Tensor Forward(const Tensor& query, const Tensor& key, const Tensor& value,
                 const HeadAngles& angles, const RowAttentionOptions& options) const override {
    HeadAngles own = angles;
    if (own.cosine.defined()) {
      own.cosine = TokensOfPart(angles.cosine, 0, part_);
      own.sine = TokensOfPart(angles.sine, 0, part_);
    }
    RowAttentionOptions of_heads = options;
    of_heads.first_head = first_head_;
    of_heads.all_heads = all_heads_;
    return RingAttention(RotateHeads(query.transpose(1, 2), own),
                         RotateHeads(key.transpose(1, 2), own), value.transpose(1, 2), of_heads,
                         line_, part_.zigzag)
        .transpose(1, 2)
        .flatten(-2);
  }

 private:
  const RankLine line_;
  const HiddenPart part_;
  const int64_t first_head_;
  const int64_t all_heads_;
};

class HeadOfPart : public WrappedLayer<HeadAndLoss> {
 public:
  HeadOfPart(std::shared_ptr<HeadAndLoss> head, const RankLine& line, const HiddenPart& part)
      : WrappedLayer(std::move(head)), line_(line), part_(part) {}
  Tensor Logits(const Tensor& hidden) const override {
    return GatherTokens(inner().Logits(hidden), line_, part_.zigzag);
  }
  Tensor SumOfLosses(const Tensor& hidden, const Tensor& labels, double gradient) const override {
    return ReduceOverLine(
        inner().SumOfLosses(hidden, TokensOfPart(labels, -1, part_).contiguous(), gradient), line_,
        "loss");
  }
  Tensor RouterSums(const Tensor& sums) const override {
    return ReduceOverLine(inner().RouterSums(sums).clone(at::MemoryFormat::Contiguous), line_,
                          "router sums");
  }

 private:
  const RankLine line_;
  const HiddenPart part_;
};

}  // namespace

SequenceLayers::SequenceLayers(const torch::TensorOptions& options, const RankLine& line,
                               const SequenceLayout& sequence)
    : inner_(std::make_unique<PlainLayers>(options)),
      divided_(nullptr),
      line_(line),
      sequence_(sequence) {}

SequenceLayers::SequenceLayers(std::unique_ptr<TensorLayers> divided, const EqualPart& heads,
                               const RankLine& line, const SequenceLayout& sequence)
    : inner_(std::move(divided)),
      divided_(static_cast<const TensorLayers*>(inner_.get())),
      heads_(heads),
      line_(line),
      sequence_(sequence) {}

ParameterBoxes SequenceLayers::BoxesOf(const Tensor& parameter) const {
  return divided_ != nullptr ? divided_->BoxesOf(parameter)
                             : ParameterBoxes(parameter.sizes().vec());
}

HiddenPart SequenceLayers::hidden_part() const {
  return {.tokens = {line_.place(), line_.size()}, .zigzag = sequence_.zigzag};
}

std::shared_ptr<VocabularyTable> SequenceLayers::TokenEmbedding(int64_t vocabulary, int64_t width,
                                                                int64_t padding_token) {
  return std::make_shared<TableOfPart>(inner_->TokenEmbedding(vocabulary, width, padding_token),
                                       hidden_part());
}

std::shared_ptr<Layer> SequenceLayers::PositionEmbedding(int64_t rows, int64_t width) {
  return std::make_shared<PositionsOfPart>(inner_->PositionEmbedding(rows, width), hidden_part());
}

std::shared_ptr<HeadAttention> SequenceLayers::Attention(const AttentionSpec& attention) {
  const int64_t all_heads = attention.num_heads;
  const int64_t first_head = heads_.index * (all_heads / heads_.count);
  if (sequence_.sharing == SequenceSharing::kUlysses) {
    return std::make_shared<UlyssesAttention>(line_, first_head, all_heads);
  }
  return std::make_shared<RingOfHeads>(line_, hidden_part(), first_head, all_heads);
}

std::shared_ptr<HeadAndLoss> SequenceLayers::Head(const HeadShape& shape,
                                                  std::shared_ptr<VocabularyTable> tied) {
  return std::make_shared<HeadOfPart>(inner_->Head(shape, std::move(tied)), line_, hidden_part());
}

}  // namespace gemini::trainer
