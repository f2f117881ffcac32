// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/grid_layers.h"

#include <utility>

#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "c10/util/Exception.h"
#include "trainer/models/head_loss.h"
#include "trainer/parallel/norm_of_parts.h"
#include "trainer/parallel/part_functions.h"
#include "trainer/parallel/tensor_functions_1d.h"
#include "trainer/parallel/vocabulary_rows.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr char kWeight[] = "weight";
constexpr char kBias[] = "bias";

// Returns a part of x [sequences, ..].
Tensor PartOf(const Tensor& x, const EqualPart& part) {
  TORCH_CHECK(x.size(0) % part.count == 0, x.size(0), " sequences for ", part.count, " parts");
  const int64_t size = x.size(0) / part.count;
  return x.narrow(0, part.index * size, size);
}

class GridTable : public VocabularyTable {
 public:
  GridTable(int64_t vocabulary, int64_t local_width, int64_t padding_token, const GridPlan& plan,
            const torch::TensorOptions& options)
      : plan_(plan),
        // Those that are put together.
        rows_(VocabularyRows::Of(
            vocabulary,
            {plan.rows.index / plan.parts_of_table(), plan.rows.count / plan.parts_of_table()},
            plan.parts_of_table())),
        padding_token_(padding_token) {
    register_parameter(kWeight,
                       at::empty({rows_.padded / plan.parts_of_table(), local_width}, options));
  }
  Tensor Forward(const Tensor& ids) const override {
    const Tensor table = GatherParts(Own(kWeight), 0, plan_.table, "embedding");
    const Tensor found = rows_.LookUp(table, PartOf(ids, plan_.embedded_sequences), padding_token_);
    return ReduceScatterParts(found, 0, plan_.embedding_sum, "embedding");
  }
  std::vector<Tensor> blocks() const override { return {Own(kWeight)}; }

 private:
  const GridPlan plan_;
  const VocabularyRows rows_;
  const int64_t padding_token_;
};

class GridHead : public HeadAndLoss {
 public:
  GridHead(const HeadShape& shape, int64_t local_width, std::shared_ptr<VocabularyTable> tied,
           const GridPlan& plan, const torch::TensorOptions& options)
      : plan_(plan),
        rows_(VocabularyRows::Of(shape.vocabulary, plan.logit_rows)),
        tied_(std::move(tied)) {
    const int64_t own_rows = VocabularyRows::Of(shape.vocabulary, plan.rows).padded;
    const int64_t all_rows = own_rows * plan.head_table.size();
    head_ = {.cut = {.rows = rows_.count,
                     .width = local_width,
                     .rows_of_piece = all_rows,
                     .tokens_of_piece =
                         CutIntoPieces(all_rows, shape.width, /*on_cpu=*/true).tokens_of_piece},
             .logit_scale = shape.logit_scale,
             .soft_cap = shape.logit_soft_cap,
             .first_row = rows_.first,
             .merge =
                 [lines = plan.other_rows](Tensor sums_and_targets) {
                   for (const RankLine& line : lines) {
                     sums_and_targets = MergeSumsOfLogits(sums_and_targets, line);
                   }
                   return sums_and_targets;
                 },
             .add =
                 [line = plan.head_output, count = rows_.count](const Tensor& products) {
                   return ReduceScatterParts(products, -1, line, "head").narrow(-1, 0, count);
                 },
             .gather =
                 [line = plan.head_output, rows = rows_](const Tensor& derivatives) {
                   return GatherParts(Padded(derivatives, rows), -1, line, "head");
                 }};
    if (tied_ == nullptr) register_parameter(kWeight, at::empty({own_rows, local_width}, options));
  }
  Tensor Logits(const Tensor& hidden) const override {
    // One behind the other, in all ranks alike.
    const Tensor whole = WholeHidden(hidden);
    const Tensor table = WholeTable();
    Tensor logits = Padded(HeadLogits(whole, {table}, head_), rows_);
    for (const RankLine& line : plan_.other_rows) {
      logits = GatherOverLine(logits, -1, line, "logits");
    }
    logits = logits.narrow(-1, 0, rows_.vocabulary);
    for (const RankLine& line : plan_.other_sequences) {
      logits = GatherOverLine(logits, 0, line, "logits");
    }
    return logits;
  }
  Tensor SumOfLosses(const Tensor& hidden, const Tensor& labels, double gradient) const override {
    const Tensor whole = WholeHidden(hidden).flatten(0, -2);
    const Tensor table = WholeTable();
    Tensor sum =
        HeadLoss(whole, PartOf(labels, plan_.logit_sequences).flatten(), {table}, head_, gradient);
    for (const RankLine& line : plan_.other_sequences) {
      sum = ReduceOverLine(std::move(sum), line, "loss");
    }
    return sum;
  }

 private:
  // Adds zeros for the rows behind the vocabulary's end.
  static Tensor Padded(const Tensor& logits, const VocabularyRows& rows) {
    return at::constant_pad_nd(logits, {0, rows.padded - rows.count});
  }
  Tensor WholeHidden(const Tensor& hidden) const {
    return GatherParts(hidden, plan_.head_input.dimension, plan_.head_input.line, "head");
  }
  // All rows of this rank's logits, and of those with which it adds them up.
  Tensor WholeTable() const {
    const Tensor table = tied_ != nullptr ? tied_->blocks().front() : Own(kWeight);
    return GatherParts(table, 0, plan_.head_table, "head");
  }

  const GridPlan plan_;
  const VocabularyRows rows_;
  const std::shared_ptr<VocabularyTable> tied_;  // No child: its parameters are the embedding's.
  HeadOptions head_;
};

class GridPositions : public Layer {
 public:
  GridPositions(int64_t rows, int64_t local_width, const GridPlan& plan,
                const torch::TensorOptions& options)
      : plan_(plan) {
    register_parameter(kWeight, at::empty({rows, local_width}, options));
  }
  Tensor Forward(const Tensor& ids) const override {
    // Rows of one sequence serve all.
    const Tensor own = ids.size(0) == 1 ? ids : PartOf(ids, plan_.sequences);
    return at::embedding(WithSums(Own(kWeight), plan_.same_width), own);
  }

 private:
  const GridPlan plan_;
};

class GridNorm : public Layer {
 public:
  GridNorm(const NormSpec& norm, int64_t local_width, const GridPlan& plan,
           const torch::TensorOptions& options)
      : norm_(norm), plan_(plan) {
    if (!norm.affine) return;
    register_parameter(kWeight, at::empty({local_width}, options));
    if (norm.kind == NormKind::kLayer && norm.bias) {
      register_parameter(kBias, at::empty({local_width}, options));
    }
  }
  Tensor Forward(const Tensor& x) const override {
    return NormOfParts(x, WithSums(Own(kWeight), plan_.same_width),
                       WithSums(Own(kBias), plan_.same_width), norm_, plan_.width);
  }

 private:
  const NormSpec norm_;
  const GridPlan plan_;
};

// Y = X W, of which each rank has parts of all three.
class GridLinear : public Layer {
 public:
  // `input` puts together what goes in: here, or for several layers before them.
  GridLinear(const LinearShape& local, const MatrixPlan& plan, std::shared_ptr<InputOfParts> input,
             bool is_input_shared, const char* site, const torch::TensorOptions& options)
      : is_in_out_(local.layout == MatrixLayout::kInOut),
        plan_(plan),
        input_(std::move(input)),
        is_input_shared_(is_input_shared),
        site_(site) {
    register_parameter(kWeight, is_in_out_ ? at::empty({local.in, local.out}, options)
                                           : at::empty({local.out, local.in}, options));
    if (local.bias) register_parameter(kBias, at::empty({local.out}, options));
  }
  Tensor Forward(const Tensor& x) const override {
    const Tensor in = is_input_shared_ ? x : input_->Forward(x);
    const Tensor bias = WithSums(Own(kBias), plan_.same_output);
    const bool adds_up = plan_.output.line.is_shared();
    const Tensor out = LinearOfParts(
        in, input_->parts(),
        {.weight = Own(kWeight), .is_in_out = is_in_out_, .line = plan_.matrix, .site = "matrices"},
        adds_up ? Tensor() : bias);
    if (!adds_up) return out;
    const Tensor sum = ReduceScatterParts(out, plan_.output.dimension, plan_.output.line, site_);
    return bias.defined() ? sum + bias : sum;
  }

 private:
  const bool is_in_out_;
  const MatrixPlan plan_;
  const std::shared_ptr<InputOfParts> input_;  // No child.
  const bool is_input_shared_;
  const char* const site_;
};

}  // namespace

GridLayers::GridLayers(const torch::TensorOptions& options, GridPlan plan)
    : options_(options), plan_(std::move(plan)), plain_(options) {}

std::shared_ptr<VocabularyTable> GridLayers::TokenEmbedding(int64_t vocabulary, int64_t width,
                                                            int64_t padding_token) {
  const ParameterBoxes boxes = TableBoxes(vocabulary, width);
  auto table = std::make_shared<GridTable>(vocabulary, boxes.local_sizes()[1], padding_token, plan_,
                                           options_);
  Note(*table, kWeight, boxes);
  return table;
}

std::shared_ptr<HeadAndLoss> GridLayers::Head(const HeadShape& shape,
                                              std::shared_ptr<VocabularyTable> tied) {
  const ParameterBoxes boxes = TableBoxes(shape.vocabulary, shape.width);
  const bool has_own = tied == nullptr;
  auto head =
      std::make_shared<GridHead>(shape, boxes.local_sizes()[1], std::move(tied), plan_, options_);
  if (has_own) Note(*head, kWeight, boxes);
  return head;
}

ParameterBoxes GridLayers::TableBoxes(int64_t vocabulary, int64_t width) const {
  return ParameterBoxes({vocabulary, width},
                        {{.axes = plan_.vocabulary_axes}, {.axes = plan_.width_axes}}, plan_.grid);
}

std::shared_ptr<Layer> GridLayers::PositionEmbedding(int64_t rows, int64_t width) {
  const ParameterBoxes boxes({rows, width}, {{}, {.axes = plan_.width_axes}}, plan_.grid);
  auto table = std::make_shared<GridPositions>(rows, boxes.local_sizes()[1], plan_, options_);
  Note(*table, kWeight, boxes);
  return table;
}

std::shared_ptr<Layer> GridLayers::Norm(const NormSpec& norm, int64_t width) {
  const ParameterBoxes boxes({width}, {{.axes = plan_.width_axes}}, plan_.grid);
  auto layer = std::make_shared<GridNorm>(norm, boxes.local_sizes()[0], plan_, options_);
  for (const auto& own : layer->named_parameters()) Note(*layer, own.key(), boxes);
  return layer;
}

std::shared_ptr<Layer> GridLayers::HeadNorm(const AttentionSpec& attention, int64_t heads) {
  // Heads that share their weights are divided among all ranks.
  std::vector<RankLine> lines = plan_.into.same_output;
  if (!attention.norms_heads_apart) lines.push_back(plan_.inner);
  std::shared_ptr<Layer> layer = plain_.HeadNorm(attention, heads / plan_.inner_part.count);
  for (const auto& own : layer->named_parameters()) {
    Note(*layer, own.key(),
         attention.norms_heads_apart ? ParameterBoxes({heads, attention.head_size},
                                                      {{.axes = plan_.into.out}, {}}, plan_.grid)
                                     : ParameterBoxes({attention.head_size}, {{}}, plan_.grid));
  }
  return std::make_shared<SummedLayer>(std::move(layer), std::move(lines));
}

std::shared_ptr<Layer> GridLayers::SharedInput() {
  input_ = std::make_shared<InputOfParts>(plan_.into.input, "shared input");
  return input_;
}

std::shared_ptr<HeadAttention> GridLayers::Attention(const AttentionSpec& attention) {
  return std::make_shared<HeadsOfPart>(plan_.inner_part, plan_.inner_sequences,
                                       attention.num_heads);
}

std::shared_ptr<Layer> GridLayers::Linear(const LinearShape& shape, Role role) {
  switch (role) {
    case Role::kQueryKeyValue:
      return MakeLinear(shape, plan_.into, input_, "attention in");
    case Role::kFeedIn:
      return MakeLinear(shape, plan_.into, input_, "feed in");
    case Role::kAttentionOut:
      return MakeLinear(shape, plan_.out_of, nullptr, "attention out");
    case Role::kFeedOut:
      return MakeLinear(shape, plan_.out_of, nullptr, "feed out");
    case Role::kProjectIn:
    case Role::kExpertIn:
    case Role::kExpertOut:
    case Role::kRouter:
    case Role::kProjectOut:
    case Role::kOfSequence:
      break;
  }
  TORCH_CHECK(false, "a layer that no grid of ranks shares");
}

std::shared_ptr<Layer> GridLayers::MakeLinear(const LinearShape& shape, const MatrixPlan& plan,
                                              std::shared_ptr<InputOfParts> input,
                                              const char* site) {
  const DimensionSplit in = {.axes = plan.in};
  const DimensionSplit out = {.axes = plan.out, .sections = shape.sections};
  const bool is_in_out = shape.layout == MatrixLayout::kInOut;
  const ParameterBoxes weight = is_in_out
                                    ? ParameterBoxes({shape.in, shape.out}, {in, out}, plan_.grid)
                                    : ParameterBoxes({shape.out, shape.in}, {out, in}, plan_.grid);
  LinearShape local = shape;
  local.in = weight.local_sizes()[is_in_out ? 0 : 1];
  local.out = weight.local_sizes()[is_in_out ? 1 : 0];
  const bool is_input_shared = input != nullptr;
  if (!is_input_shared) input = std::make_shared<InputOfParts>(plan.input, site);
  auto layer =
      std::make_shared<GridLinear>(local, plan, std::move(input), is_input_shared, site, options_);
  Note(*layer, kWeight, weight);
  if (shape.bias) Note(*layer, kBias, ParameterBoxes({shape.out}, {out}, plan_.grid));
  return layer;
}

}  // namespace gemini::trainer
