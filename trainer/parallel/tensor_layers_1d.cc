// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_layers_1d.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"
#include "absl/strings/str_cat.h"
#include "trainer/models/head_loss.h"
#include "trainer/parallel/part_functions.h"
#include "trainer/parallel/tensor_fit.h"
#include "trainer/parallel/tensor_functions_1d.h"
#include "trainer/parallel/vocabulary_rows.h"

namespace gemini::trainer {
namespace {

using policies::TensorAxis;
using torch::Tensor;

constexpr char kWeight[] = "weight";
constexpr char kBias[] = "bias";
constexpr int64_t kTokenDimension = -2;  // Of [.., tokens, width]: what parts are in.
const DimensionSplit kAlongLine = {.axes = {TensorAxis::kJ}};

class TableRows : public VocabularyTable {
 public:
  TableRows(const VocabularyRows& rows, int64_t width, int64_t padding_token, const RankLine& line,
            bool has_parts, const torch::TensorOptions& options)
      : rows_(rows), padding_token_(padding_token), line_(line), has_parts_(has_parts) {
    register_parameter(kWeight, at::empty({rows.padded, width}, options));
  }
  Tensor Forward(const Tensor& ids) const override {
    const Tensor own = rows_.LookUp(Own(kWeight), ids, padding_token_);
    return has_parts_ ? ReduceScatterParts(own, kTokenDimension, line_, "embedding")
                      : ReduceOverLine(own, line_, "embedding");
  }
  std::vector<Tensor> blocks() const override { return {Own(kWeight)}; }

 private:
  const VocabularyRows rows_;
  const int64_t padding_token_;
  const RankLine line_;
  const bool has_parts_;
};

class HeadRows : public HeadAndLoss {
 public:
  HeadRows(const HeadShape& shape, const VocabularyRows& rows,
           std::shared_ptr<VocabularyTable> tied, const RankLine& line, bool has_parts,
           const torch::TensorOptions& options)
      : rows_(rows), tied_(std::move(tied)), line_(line), has_parts_(has_parts) {
    VocabularyCut cut = CutIntoPieces(rows.count, shape.width, /*on_cpu=*/true);
    // The last rank may have fewer rows, and merges as often as the others do.
    cut.tokens_of_piece = CutIntoPieces(rows.padded, shape.width, /*on_cpu=*/true).tokens_of_piece;
    head_ = {.cut = cut,
             .logit_scale = shape.logit_scale,
             .soft_cap = shape.logit_soft_cap,
             .first_row = rows.first,
             .merge = [line](const Tensor& sums_and_targets) {
               return MergeSumsOfLogits(sums_and_targets, line);
             }};
    if (tied_ == nullptr) {
      register_parameter(kWeight, at::empty({rows.padded, shape.width}, options));
    }
    if (shape.bias) register_parameter(kBias, at::empty({rows.padded}, options));
  }
  Tensor Logits(const Tensor& hidden) const override {
    // All ranks gather equally many.
    HeadOptions padded = head_;
    padded.cut.rows = rows_.padded;
    const Tensor logits = HeadLogits(WholeHidden(hidden), {table()}, padded, Own(kBias));
    return GatherOverLine(logits, /*dimension=*/-1, line_, "logits")
        .narrow(-1, 0, rows_.vocabulary);
  }
  Tensor SumOfLosses(const Tensor& hidden, const Tensor& labels, double gradient) const override {
    return HeadLoss(WholeHidden(hidden).flatten(0, -2), labels.flatten(), {InVocabulary(table())},
                    head_, gradient, InVocabulary(Own(kBias)));
  }

 private:
  // All ranks read it, each with its part of the vocabulary.
  Tensor WholeHidden(const Tensor& hidden) const {
    return has_parts_ ? GatherParts(hidden, kTokenDimension, line_, "head")
                      : CopyToLine(hidden, line_, "head");
  }
  Tensor table() const { return tied_ != nullptr ? tied_->blocks().front() : Own(kWeight); }
  // Returns what has a row for each of this rank's, less those behind the vocabulary's end. It may
  // be undefined.
  Tensor InVocabulary(const Tensor& rows) const {
    return rows.defined() && rows_.count < rows_.padded ? rows.narrow(0, 0, rows_.count) : rows;
  }

  const VocabularyRows rows_;
  const std::shared_ptr<VocabularyTable> tied_;  // No child: its parameters are the embedding's.
  const RankLine line_;
  const bool has_parts_;
  HeadOptions head_;
};

class CopyLayer : public Layer {
 public:
  CopyLayer(const RankLine& line, const char* site) : line_(line), site_(site) {}
  Tensor Forward(const Tensor& x) const override { return CopyToLine(x, line_, site_); }

 private:
  const RankLine line_;
  const char* const site_;
};

// Columns of a matrix, for what InputOfParts has put together.
class ColumnsOfParts : public Layer {
 public:
  ColumnsOfParts(std::shared_ptr<Layer> layer, MatrixLayout layout,
                 std::shared_ptr<InputOfParts> input)
      : is_in_out_(layout == MatrixLayout::kInOut), input_(std::move(input)) {
    for (const auto& own : layer->named_parameters(/*recurse=*/false)) {
      register_parameter(own.key(), own.value());
    }
  }
  Tensor Forward(const Tensor& x) const override {
    return LinearOfParts(x, input_->parts(), {Own(kWeight), is_in_out_}, Own(kBias));
  }

 private:
  const bool is_in_out_;
  const std::shared_ptr<InputOfParts> input_;  // No child.
};

// Rows of the position table, for this rank's part of each sequence.
class PositionsOfPart : public Layer {
 public:
  PositionsOfPart(std::shared_ptr<Layer> layer, const RankLine& line)
      : layer_(std::move(layer)), line_(line) {
    register_parameter(kWeight, layer_->named_parameters()[kWeight]);
  }
  Tensor Forward(const Tensor& ids) const override {
    const int64_t size = ids.size(-1) / line_.size();
    layer_->Replace(kWeight, Own(kWeight));
    Tensor out = layer_->Forward(ids.narrow(-1, line_.place() * size, size));
    layer_->Replace(kWeight, Tensor());  // Keeps no graph.
    return out;
  }

 private:
  const std::shared_ptr<Layer> layer_;  // No child: its parameter is this one's.
  const RankLine line_;
};

// The rows of a matrix, for the columns of x that a rank has. Without a site it returns this rank's
// part of the sum, which is added up elsewhere.
class LinearRows : public Layer {
 public:
  LinearRows(const LinearShape& local, const RankLine& line, bool has_parts, const char* site,
             const torch::TensorOptions& options)
      : is_in_out_(local.layout == MatrixLayout::kInOut),
        line_(line),
        has_parts_(has_parts),
        site_(site) {
    register_parameter(kWeight, is_in_out_ ? at::empty({local.in, local.out}, options)
                                           : at::empty({local.out, local.in}, options));
    TORCH_CHECK(site != nullptr || !local.bias,
                "a bias of an expert, which several ranks would add");
    if (local.bias) register_parameter(kBias, at::empty({local.out}, options));
  }
  Tensor Forward(const Tensor& x) const override {
    const Tensor weight = is_in_out_ ? Own(kWeight).t() : Own(kWeight);
    const Tensor bias = Own(kBias);
    if (site_ == nullptr) return at::linear(x, weight);
    if (has_parts_) {
      const Tensor sum = ReduceScatterParts(at::linear(x, weight), kTokenDimension, line_, site_);
      return bias.defined() ? sum + WithSums(bias, {line_}) : sum;
    }
    const Tensor sum = ReduceOverLine(at::linear(x, weight).contiguous(), line_, site_);
    return bias.defined() ? sum + bias : sum;
  }

 private:
  const bool is_in_out_;
  const RankLine line_;
  const bool has_parts_;
  const char* const site_;
};

// Logits of a rank's rows, put together: all ranks route all rows alike.
class RoutesOfLine : public Layer {
 public:
  explicit RoutesOfLine(const RankLine& line) : line_(line) {}
  Tensor Forward(const Tensor& x) const override {
    return GatherOverLine(x, /*dimension=*/0, line_, "routes");
  }

 private:
  const RankLine line_;
};

// Hidden states of all tokens, of which all ranks make the same.
class SequencesOfParts : public Layer {
 public:
  explicit SequencesOfParts(const RankLine& line) : line_(line) {}
  Tensor Forward(const Tensor& x) const override {
    return GatherOverLine(x, kTokenDimension, line_, "sequences");
  }

 private:
  const RankLine line_;
};

class SumOfExperts : public Layer {
 public:
  SumOfExperts(const RankLine& line, bool has_parts) : line_(line), has_parts_(has_parts) {}
  Tensor Forward(const Tensor& x) const override {
    return has_parts_ ? ReduceScatterParts(x, kTokenDimension, line_, "experts out")
                      : ReduceOverLine(x, line_, "experts out");
  }

 private:
  const RankLine line_;
  const bool has_parts_;
};

// Returns the first of these reasons that is one.
std::string FirstOf(std::vector<std::string> reasons) {
  for (std::string& reason : reasons) {
    if (!reason.empty()) return std::move(reason);
  }
  return "";
}

// The same as WhyNot, of a model with a pair trunk.
std::string WhyNotTrunk(const ModelSpec& spec, const PairTrunkSpec& trunk, int64_t num_ranks) {
  // A distogram's head is whole.
  const int64_t vocabulary = spec.task.predicts_tokens() ? spec.vocab_size : 0;
  return FirstOf({DoNotDivide("the heads of its alignment (msa_num_heads)",
                              trunk.msa_heads.num_heads, num_ranks),
                  DoNotDivide("the heads of its pairs (triangle_num_heads)",
                              trunk.triangle_heads.num_heads, num_ranks),
                  DoNotDivide("the elements in its alignment's transition",
                              trunk.transition_factor * trunk.msa_width, num_ranks),
                  DoNotDivide("the elements in its pairs' transition",
                              trunk.transition_factor * trunk.pair_width, num_ranks),
                  LeavesAPartWithoutRows(vocabulary, num_ranks)});
}

// Why so many ranks cannot divide a model; nothing if they can.
std::string WhyNot(const ModelSpec& spec, int64_t num_ranks) {
  if (spec.pair_trunk.has_value()) return WhyNotTrunk(spec, *spec.pair_trunk, num_ranks);
  const AttentionSpec& attention = spec.attention;
  const int64_t kv_heads = attention.num_kv_heads;
  const bool copies = attention.layout == QueryKeyValueLayout::kApart && kv_heads < num_ranks;
  bool has_plain_feed = !spec.experts.has_value();
  for (int64_t i = 0; i < spec.num_blocks; ++i) has_plain_feed |= !spec.HasExperts(i);
  std::vector<std::string> reasons = {
      DoNotDivide("its attention heads", attention.num_heads, num_ranks)};
  if (!copies) {
    reasons.push_back(DoNotDivide("its key and value heads", kv_heads, num_ranks));
  } else if (num_ranks % kv_heads != 0) {
    reasons.push_back(
        absl::StrCat("its key and value heads, ", kv_heads, ", are fewer, and do not divide them"));
  }
  if (has_plain_feed) {
    reasons.push_back(DoNotDivide("the elements between its feed-forward matrices",
                                  spec.feed_forward.width, num_ranks));
  }
  if (spec.experts.has_value()) {
    reasons.push_back(
        DoNotDivide("the elements between an expert's matrices", spec.experts->width, num_ranks));
    reasons.push_back(DoNotDivide("the elements between the shared expert's matrices",
                                  spec.experts->shared_width, num_ranks));
  }
  reasons.push_back(LeavesAPartWithoutRows(spec.vocab_size, num_ranks));
  return FirstOf(std::move(reasons));
}

}  // namespace

int64_t CopiesOfKeyHeads(const ModelSpec& spec, int64_t num_ranks) {
  // A pair trunk's heads divide, which have keys and values of their own.
  if (spec.pair_trunk.has_value()) return 1;
  return std::max<int64_t>(num_ranks / spec.attention.num_kv_heads, 1);
}

absl::Status CheckTensor1d(const ModelSpec& spec, int64_t num_ranks) {
  return CheckParts(
      policies::TensorMode::k1d, num_ranks,
      spec.pair_trunk.has_value() ? spec.pair_trunk->msa_heads.num_heads : spec.attention.num_heads,
      [&](int64_t ranks) { return WhyNot(spec, ranks); }, [](int64_t ranks) { return ranks; });
}

TensorLayers1d::TensorLayers1d(const torch::TensorOptions& options, const RankLine& line,
                               const RankLine& copies, bool parts_of_sequences)
    : options_(options),
      line_(line),
      copies_(copies),
      has_parts_(parts_of_sequences && line.size() > 1),
      grid_(*policies::TensorGrid::Make(policies::TensorMode::k1d, line.size())),
      plain_(options) {}

std::shared_ptr<Layer> TensorLayers1d::Whole(std::shared_ptr<Layer> layer) {
  for (const auto& own : layer->named_parameters(/*recurse=*/false)) {
    std::vector<int64_t> sizes = own.value().sizes().vec();
    std::vector<DimensionSplit> splits(sizes.size());
    Note(*layer, own.key(), ParameterBoxes(std::move(sizes), std::move(splits), grid_));
  }
  return layer;
}

std::shared_ptr<Layer> TensorLayers1d::AddGradients(std::shared_ptr<Layer> layer,
                                                    const RankLine& line) {
  if (line.size() == 1) return layer;
  return std::make_shared<SummedLayer>(std::move(layer), std::vector<RankLine>{line});
}

std::shared_ptr<VocabularyTable> TensorLayers1d::TokenEmbedding(int64_t vocabulary, int64_t width,
                                                                int64_t padding_token) {
  auto table = std::make_shared<TableRows>(VocabularyRows::Of(vocabulary, part()), width,
                                           padding_token, line_, has_parts_, options_);
  Note(*table, kWeight, ParameterBoxes({vocabulary, width}, {kAlongLine, {}}, grid_));
  return table;
}

std::shared_ptr<HeadAndLoss> TensorLayers1d::Head(const HeadShape& shape,
                                                  std::shared_ptr<VocabularyTable> tied) {
  const bool has_own = tied == nullptr;
  auto head = std::make_shared<HeadRows>(shape, VocabularyRows::Of(shape.vocabulary, part()),
                                         std::move(tied), line_, has_parts_, options_);
  if (has_own) {
    Note(*head, kWeight, ParameterBoxes({shape.vocabulary, shape.width}, {kAlongLine, {}}, grid_));
  }
  if (shape.bias) Note(*head, kBias, ParameterBoxes({shape.vocabulary}, {kAlongLine}, grid_));
  return head;
}

std::shared_ptr<Layer> TensorLayers1d::PositionEmbedding(int64_t rows, int64_t width) {
  std::shared_ptr<Layer> table = Whole(plain_.PositionEmbedding(rows, width));
  if (!has_parts_) return table;
  return AddGradients(std::make_shared<PositionsOfPart>(std::move(table), line_), line_);
}

std::shared_ptr<Layer> TensorLayers1d::Patches(const ImageSpec& image, int64_t width) {
  return Whole(plain_.Patches(image, width));
}

std::shared_ptr<Layer> TensorLayers1d::ImageTokens(const ImageSpec& image, int64_t width) {
  TORCH_CHECK(!has_parts_, "images are not divided among ranks");
  return Whole(plain_.ImageTokens(image, width));
}

std::shared_ptr<Layer> TensorLayers1d::Norm(const NormSpec& norm, int64_t width) {
  return WholeOfParts(plain_.Norm(norm, width));
}

std::shared_ptr<Layer> TensorLayers1d::WholeOfParts(std::shared_ptr<Layer> layer) {
  layer = Whole(std::move(layer));
  return has_parts_ ? AddGradients(std::move(layer), line_) : layer;
}

std::shared_ptr<Layer> TensorLayers1d::HeadNorm(const AttentionSpec& attention, int64_t heads) {
  // Each rank norms its heads alone, so their gradients are parts of what all heads share.
  if (!attention.norms_heads_apart) {
    return AddGradients(Whole(plain_.HeadNorm(attention, heads)), line_);
  }
  const ParameterBoxes boxes({heads, attention.head_size},
                             {{.axes = {TensorAxis::kJ}, .most_parts = heads}, {}}, grid_);
  std::shared_ptr<Layer> layer = plain_.HeadNorm(attention, boxes.local_sizes()[0]);
  Note(*layer, kWeight, boxes);
  return heads < line_.size() ? AddGradients(std::move(layer), copies_) : layer;
}

std::shared_ptr<Layer> TensorLayers1d::SharedInput() {
  if (!has_parts_) return std::make_shared<CopyLayer>(line_, "shared input");
  input_ = std::make_shared<InputOfParts>(PartsAlong{line_, kTokenDimension}, "shared input");
  return input_;
}

std::shared_ptr<Layer> TensorLayers1d::RouterOutput() {
  if (!has_parts_) return nullptr;
  return std::make_shared<RoutesOfLine>(line_);
}

std::shared_ptr<Layer> TensorLayers1d::ExpertWeights() {
  return std::make_shared<CopyLayer>(line_, "expert weights");
}

std::shared_ptr<Layer> TensorLayers1d::ExpertsOutput() {
  return std::make_shared<SumOfExperts>(line_, has_parts_);
}

std::shared_ptr<HeadAttention> TensorLayers1d::Attention(const AttentionSpec& attention) {
  return std::make_shared<HeadsOfPart>(part(), EqualPart(), attention.num_heads);
}

std::shared_ptr<Layer> TensorLayers1d::WholeSequences() {
  if (!has_parts_) return nullptr;
  return std::make_shared<SequencesOfParts>(line_);
}

std::shared_ptr<Layer> TensorLayers1d::Linear(const LinearShape& shape, Role role) {
  switch (role) {
    case Role::kQueryKeyValue:
    case Role::kFeedIn:
      return Columns(shape, /*is_expert=*/false);
    case Role::kExpertIn:
      return Columns(shape, /*is_expert=*/true);
    case Role::kExpertOut:
      return Rows(shape, /*site=*/nullptr);
    case Role::kAttentionOut:
    case Role::kFeedOut:
      return Rows(shape, role == Role::kAttentionOut ? "attention out" : "feed out");
    case Role::kProjectIn:
    case Role::kRouter:
    case Role::kProjectOut:
      return WholeOfParts(plain_.Linear(shape, role));
    case Role::kOfSequence:
      return Whole(plain_.Linear(shape, role));
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::shared_ptr<Layer> TensorLayers1d::Columns(const LinearShape& shape, bool is_expert) {
  const DimensionSplit out = {
      .axes = {TensorAxis::kJ}, .sections = shape.sections, .most_parts = shape.heads};
  const bool is_in_out = shape.layout == MatrixLayout::kInOut;
  const ParameterBoxes weight = is_in_out ? ParameterBoxes({shape.in, shape.out}, {{}, out}, grid_)
                                          : ParameterBoxes({shape.out, shape.in}, {out, {}}, grid_);
  LinearShape local = shape;
  local.out = weight.local_sizes()[is_in_out ? 1 : 0];
  std::shared_ptr<Layer> layer = plain_.Linear(local, Role::kQueryKeyValue);
  Note(*layer, kWeight, weight);
  if (shape.bias) Note(*layer, kBias, ParameterBoxes({shape.out}, {out}, grid_));
  // An expert reads a copy of some rows, which its graph keeps.
  if (has_parts_ && !is_expert) {
    layer = std::make_shared<ColumnsOfParts>(std::move(layer), shape.layout, input_);
  }
  const bool has_copies = shape.heads > 0 && shape.heads < line_.size();
  return has_copies ? AddGradients(std::move(layer), copies_) : layer;
}

std::shared_ptr<Layer> TensorLayers1d::Rows(const LinearShape& shape, const char* site) {
  const bool is_in_out = shape.layout == MatrixLayout::kInOut;
  const ParameterBoxes weight =
      is_in_out ? ParameterBoxes({shape.in, shape.out}, {kAlongLine, {}}, grid_)
                : ParameterBoxes({shape.out, shape.in}, {{}, kAlongLine}, grid_);
  LinearShape local = shape;
  local.in = weight.local_sizes()[is_in_out ? 0 : 1];
  auto layer = std::make_shared<LinearRows>(local, line_, has_parts_, site, options_);
  Note(*layer, kWeight, weight);
  if (shape.bias) Note(*layer, kBias, ParameterBoxes({shape.out}, {{}}, grid_));
  return layer;
}

}  // namespace gemini::trainer
