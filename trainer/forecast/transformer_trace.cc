// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/transformer_trace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"
#include "trainer/forecast/trace_writer.h"

namespace gemini::policies {
namespace {

constexpr int64_t kMaxOperators = int64_t{1} << 24;
constexpr int64_t kMaxTokens = int64_t{1} << 26;
constexpr double kMaxBytes = 0x1p60;
constexpr int64_t kFp32Bytes = 4;
constexpr int64_t kTokenBytes = 8;  // Ids are int64.
// Of dropout on CUDA; one byte an element.
constexpr int64_t kMaskBytes = 1;
// The loss, its part of the accumulated one, the weight of all labels, and the gradient that
// backward begins with.
constexpr int64_t kLossScalars = 4;

// Runs one micro-batch after another. Sizes: `x_` is one tensor of the width of the residual
// stream, `inner_` one of the feed-forward part's; all are as the allocator takes them.
class TransformerRound {
 public:
  TransformerRound(const TransformerShape& shape, const RoundShape& round,
                   const TransformerTensors& model, TransformerTrace& out, const ComputeRate& rate)
      : shape_(shape),
        round_(round),
        model_(model),
        trace_(out.trace),
        write_(out, rate, round.on_cpu),
        tokens_(round.batch * round.sequence),
        x_(Tensor(shape.hidden, ElementBytes(round.element))),
        inner_(Tensor(shape.inner, ElementBytes(round.element))),
        embedded_(Tensor(shape.embedding_size, ElementBytes(round.element))),
        statistics_(shape.affine_norm || shape.final_norm ? 2 * Tensor(1, kFp32Bytes) : 0),
        row_sums_(KeepsScores() ? 0 : Tensor(shape.num_heads, kFp32Bytes)),
        scores_(KeepsScores() ? Tensor(shape.num_heads * round.sequence, kFp32Bytes) : 0),
        widened_(KeepsScores() ? Tensor(shape.hidden, kFp32Bytes) : 0),
        copies_(ViewsValues() ? 2 * widened_ : 3 * widened_),
        kept_products_(!KeepsScores()                             ? 3 * x_
                       : !ViewsValues()                           ? 0
                       : shape.family == TransformerFamily::kGpt2 ? 3 * x_
                                                                  : x_),
        mask_(!DropsOut()    ? 0
              : round.on_cpu ? x_
                             : Tensor(shape.hidden, kMaskBytes)),
        logits_(Tensor(shape.vocabulary, ElementBytes(round.element))),
        losses_(Tensor(shape.vocabulary, kFp32Bytes)),
        labels_(Tensor(1, kTokenBytes)),
        scalars_(kLossScalars * write_.Allocated(kFp32Bytes)),
        ids_(labels_ + write_.Allocated(round.sequence * kTokenBytes)) {}

  void MicroBatch(bool is_first) {
    is_first_ = is_first;
    const bool train = round_.train;
    Embeddings();
    for (const BlockTensors& block : model_.blocks) {
      const bool keep = train && !round_.recompute;
      ForwardBlock("forward of ", block, keep);
      if (!train) write_.Give(x_);  // The block's input.
    }
    Head();
    if (!train) return;
    BackwardHead();
    for (auto block = model_.blocks.rbegin(); block != model_.blocks.rend(); ++block) {
      if (round_.recompute) {
        write_.Take(x_);  // Autograd holds the output's gradient beside the one that goes down.
        ForwardBlock("recomputation of ", *block, /*keep=*/true);
        write_.Give(x_);  // Its output, which nobody reads.
      }
      BackwardBlock(*block);
      if (round_.recompute) write_.Give(x_);
    }
    BackwardEmbeddings();
    GEMINI_CHECK(write_.is_balanced());
  }

  void Finish() {
    if (round_.train) write_.Update();
  }

 private:
  bool DropsOut() const { return shape_.dropout && round_.train; }
  // Attention by its products, one after the other: the CPU's fused kind draws no dropout.
  bool KeepsScores() const { return shape_.attention_dropout && round_.train && round_.on_cpu; }
  // Heads of one sequence are views. The values' keep all that is one tensor with them.
  bool ViewsValues() const {
    return KeepsScores() && round_.batch == 1 && round_.element == ElementType::kFp32;
  }
  bool KeepsActivationInput() const { return shape_.activation_keeps_input; }
  bool DropsOutEmbeddings() const { return shape_.embedding_dropout && round_.train; }
  static double D(int64_t value) { return static_cast<double>(value); }
  // Of so many elements a token.
  int64_t Tensor(int64_t elements, int64_t element_bytes) const {
    return write_.Allocated(tokens_ * elements * element_bytes);
  }
  double Columns(const LayerTensors& layer, int64_t in) const {
    return D(trace_.tensors[layer.weight].size_bytes) / D(ElementBytes(round_.element)) / D(in);
  }

  // Forward and backward of y = x W + b, x of `in` columns: arithmetic alone.
  void RunLinear(const LayerTensors& layer, int64_t in) {
    const double out = Columns(layer, in);
    // oneDNN's: at most the weight packed anew, and the sums in fp32.
    const int64_t scratch = round_.on_cpu && round_.element != ElementType::kFp32
                                ? trace_.tensors[layer.weight].size_bytes +
                                      tokens_ * kFp32Bytes * std::max(in, static_cast<int64_t>(out))
                                : 0;
    write_.Take(scratch);
    write_.Give(scratch);
    write_.Run(2 * D(tokens_) * D(in) * out,
               D(ElementBytes(round_.element)) * (D(tokens_) * (D(in) + out) + D(in) * out));
  }
  // Its backward leaves the gradient of x, of `input_bytes`, and those of W and b, which reads
  // neither W nor b. With b it is that of a sum, which makes the gradient of x first.
  void LinearBackward(const LayerTensors& layer, int64_t in, int64_t input_bytes) {
    if (layer.bias < 0) write_.TakeGradient(layer.weight);
    write_.Operator("backward of ", {layer.name, layer.weight});
    write_.Take(input_bytes);
    RunLinear(layer, in);
    RunLinear(layer, in);
    if (layer.bias >= 0) TakeGradients(layer);
  }
  void RunOn(int64_t bytes) { write_.Run(0, D(bytes)); }

  void TakeGradients(const LayerTensors& layer) {
    write_.TakeGradient(layer.weight);
    write_.TakeGradient(layer.bias);
  }
  void FinishGradients(const LayerTensors& layer) {
    write_.FinishGradient(layer.bias, is_first_);
    write_.FinishGradient(layer.weight, is_first_);
  }

  // Ends with the residual stream, `x_`, live.
  void Embeddings() {
    write_.Operator("forward of ", model_.token_embedding);
    write_.Take(ids_ + embedded_);
    RunOn(2 * embedded_);
    if (model_.project_in.weight >= 0) {
      write_.Operator("forward of ", model_.project_in);
      write_.Take(x_);
      RunLinear(model_.project_in, shape_.embedding_size);
      if (!round_.train) write_.Give(embedded_);
    }
    write_.Operator("forward of ", model_.position_embedding);
    const int64_t rows = x_ / round_.batch;  // All sequences share them.
    write_.Take(rows + x_);                  // And the sum.
    RunOn(2 * rows + 3 * x_);
    write_.Give(rows + x_);
    if (DropsOutEmbeddings()) DropOut(mask_);
  }

  // Replaces a tensor of `x_` by its dropout.
  void DropOut(int64_t mask) {
    write_.Take(x_ + mask);
    RunOn(2 * x_ + mask);
    write_.Give(x_);
  }

  void Norm(const char* pass, const LayerTensors& layer) {
    write_.Operator(pass, layer);
    write_.Take(x_ + statistics_);
    RunOn(2 * x_);
  }
  // `give`: what of the gradient behind it is let go.
  void NormBackward(const LayerTensors& layer) {
    write_.Operator("backward of ", layer);
    write_.Take(x_);
    TakeGradients(layer);
    RunOn(4 * x_);
    write_.Give(x_ + statistics_);
    FinishGradients(layer);
  }

  // Reads the residual stream and leaves the next one beside it. What backward will read stays
  // live: KeptBytes(). Without `keep` nothing does.
  void ForwardBlock(const char* pass, const BlockTensors& block, bool keep) {
    const bool before = shape_.norm_before;
    if (before) Norm(pass, block.attention_norm);
    for (const LayerTensors& layer : block.projections) {
      write_.Operator(pass, layer);
      write_.Take(3 * x_ / static_cast<int64_t>(block.projections.size()));
      RunLinear(layer, shape_.hidden);
    }
    if (before && !keep) write_.Give(x_ + statistics_);
    Attend(keep);
    // Two products of [sequence, head] and [sequence, sequence], half of it behind the causal mask.
    write_.Run(2 * D(tokens_) * D(round_.sequence) * D(shape_.hidden), D(4 * x_));
    write_.Operator(pass, block.attention_out);
    write_.Take(x_);
    RunLinear(block.attention_out, shape_.hidden);
    if (!keep) write_.Give(x_ + row_sums_);
    AddBranch();
    if (!before) {
      Norm(pass, block.attention_norm);
      if (!keep) write_.Give(x_ + statistics_);  // The sum takes this one's place.
    }
    if (before) Norm(pass, block.feed_norm);
    write_.Operator(pass, block.feed_in);
    write_.Take(inner_);
    RunLinear(block.feed_in, shape_.hidden);
    if (before && !keep) write_.Give(x_ + statistics_);
    write_.Take(inner_);
    RunOn(2 * inner_);
    write_.Operator(pass, block.feed_out);
    write_.Take(x_);
    RunLinear(block.feed_out, shape_.inner);
    write_.Give((keep ? 0 : inner_) + (keep && KeepsActivationInput() ? 0 : inner_));
    AddBranch();
    if (!before) {
      Norm(pass, block.feed_norm);
      if (!keep) write_.Give(x_ + statistics_);
    }
    write_.Give(2 * x_);  // Both parts' results before they were added: locals of the block.
    write_.Give(3 * x_ - (keep ? kept_products_ : 0));  // Of query, key and value.
    if (!keep) write_.Give(x_ + 2 * mask_);             // The sum between the parts.
  }

  // Query, key and value are live; leaves the result, x_ + row_sums_, beside them. Where the scores
  // are kept, so are fp32 copies of query, key and value; what they were made of goes.
  void Attend(bool keep) {
    write_.Take(x_ + row_sums_);
    if (!KeepsScores()) return;
    write_.Take(copies_ + widened_);  // And the result before its heads stand side by side.
    write_.Take(4 * scores_);  // Softmax with and without masked rows, the mask, and the product.
    write_.Give(scores_ + widened_);
    if (!keep) write_.Give(copies_ + 3 * scores_);
  }

  // The result of a part is dropped out and added to the residual stream. It lives on in a local.
  void AddBranch() {
    if (DropsOut()) DropOut(mask_);
    write_.Take(x_);
    RunOn(3 * x_);
  }

  // Needs the gradient of the block's output live, and leaves that of its input. Lets go of what
  // forward kept and of the block's output; each right after its last reader.
  void BackwardBlock(const BlockTensors& block) {
    const bool before = shape_.norm_before;
    if (!before) {
      write_.Give(x_);  // The block's output: here the norm made it, and not the sum.
      NormBackward(block.feed_norm);
    }
    BeginBranchBackward();
    LinearBackward(block.feed_out, shape_.inner, inner_);
    FinishGradients(block.feed_out);
    EndBranchGradient();
    write_.Take(inner_);  // The activation's backward.
    RunOn(3 * inner_);
    write_.Give(inner_ + inner_ + (KeepsActivationInput() ? inner_ : 0));
    LinearBackward(block.feed_in, shape_.hidden, x_);
    FinishGradients(block.feed_in);
    write_.Give(inner_);
    if (before) {
      write_.Give(x_);  // What the norm made.
      NormBackward(block.feed_norm);
    }
    JoinResidual();
    if (!before) {
      write_.Give(x_);
      NormBackward(block.attention_norm);
    }
    BeginBranchBackward();
    LinearBackward(block.attention_out, shape_.hidden, x_);
    FinishGradients(block.attention_out);
    EndBranchGradient();
    // Attention: the gradients of query, key and value, then one tensor of them if they were one.
    write_.Take(2 * scores_ + 3 * widened_);
    write_.Give(5 * scores_ + copies_);  // With what forward kept of both.
    write_.Take(3 * x_);
    write_.Run(5 * D(tokens_) * D(round_.sequence) * D(shape_.hidden), D(8 * x_));
    write_.Give(3 * widened_ + x_ + kept_products_ + x_ + row_sums_);
    if (block.projections.size() == 1) {
      write_.Take(3 * x_);
      RunOn(6 * x_);
      write_.Give(3 * x_);
    }
    const auto parts = static_cast<int64_t>(block.projections.size());
    for (int64_t part = parts - 1; part >= 0; --part) {
      const LayerTensors& layer = block.projections[part];
      LinearBackward(layer, shape_.hidden, x_);
      FinishGradients(layer);
      write_.Give(3 * x_ / parts);
      if (part < parts - 1) JoinResidual();  // All three read the same input.
    }
    if (before) {
      write_.Give(x_);
      NormBackward(block.attention_norm);
    }
    JoinResidual();
  }
  // The gradient of the stream goes down the residual and, through dropout, into the part. The sum
  // itself, which the norm behind it read, is not needed any more.
  void BeginBranchBackward() {
    write_.Give(x_);
    if (!DropsOut()) return;
    write_.Take(x_);
    RunOn(2 * x_ + mask_);
    write_.Give(mask_);
  }
  void EndBranchGradient() {
    if (DropsOut()) write_.Give(x_);
  }
  void JoinResidual() {
    RunOn(3 * x_);
    write_.Give(x_);
  }

  // Final norm, logits and loss. In training it leaves the loss's log-probabilities live, beside
  // what the norm and the head keep.
  void Head() {
    const bool train = round_.train;
    if (shape_.final_norm) {
      Norm("forward of ", model_.final_norm);
      if (!train) write_.Give(x_ + statistics_);
    }
    if (model_.project_out.weight >= 0) {
      write_.Operator("forward of ", model_.project_out);
      write_.Take(embedded_);
      RunLinear(model_.project_out, shape_.hidden);
      if (!train) write_.Give(x_);
    }
    write_.Operator("forward of ", model_.head);
    write_.Take(logits_);
    RunLinear(model_.head, shape_.embedding_size);
    const int64_t widened = round_.element == ElementType::kFp32 ? 0 : losses_;
    write_.Take(widened + labels_ + scalars_);
    if (widened > 0) RunOn(logits_ + losses_);
    write_.Take(losses_);
    RunOn(2 * losses_);
    write_.Give(logits_ + widened);
    if (train) return;
    write_.Give(losses_ + labels_ + ids_ + scalars_);
    write_.Give(model_.project_out.weight >= 0 ? embedded_ : x_);
  }

  void BackwardHead() {
    write_.Take(losses_);
    RunOn(losses_);
    write_.Give(labels_);
    write_.Take(losses_);
    RunOn(3 * losses_);
    write_.Give(2 * losses_);  // The log-probabilities and their gradient.
    if (round_.element != ElementType::kFp32) {
      write_.Take(logits_);
      RunOn(logits_ + losses_);
      write_.Give(losses_);
    }
    LinearBackward(model_.head, shape_.embedding_size,
                   model_.project_out.weight >= 0 ? embedded_ : x_);
    // A tied head's gradient waits for the embedding's.
    if (!shape_.tied_head) write_.FinishGradient(model_.head.weight, is_first_);
    write_.Give(logits_);
    if (model_.project_out.weight >= 0) {
      LinearBackward(model_.project_out, shape_.hidden, x_);
      FinishGradients(model_.project_out);
      write_.Give(embedded_ + embedded_);
    }
    if (!shape_.final_norm) return;
    write_.Give(x_);
    NormBackward(model_.final_norm);
  }

  void BackwardEmbeddings() {
    // The first block's backward let go of everything but the gradient of its input and, of the
    // embeddings' own, their output and mask. Neither layer's backward reads its weight.
    if (DropsOutEmbeddings()) {
      write_.Take(x_);
      RunOn(2 * x_ + mask_);
      write_.Give(x_ + mask_);
    }
    write_.Give(x_);
    TakeGradients(model_.position_embedding);
    FinishGradients(model_.position_embedding);
    RunOn(x_ + trace_.tensors[model_.position_embedding.weight].size_bytes);
    int64_t gradient = x_;
    if (model_.project_in.weight >= 0) {
      LinearBackward(model_.project_in, shape_.embedding_size, embedded_);
      FinishGradients(model_.project_in);
      write_.Give(x_ + embedded_);
      gradient = embedded_;
    }
    const int32_t tokens = model_.token_embedding.weight;
    const int64_t table = trace_.tensors[tokens].size_bytes;
    write_.TakeGradient(tokens);
    RunOn(gradient + table);
    if (shape_.tied_head) {  // The sum is a third one beside the head's and this one.
      write_.TakeGradient(tokens);
      RunOn(3 * table);
      write_.GiveGradient(tokens);
      write_.GiveGradient(tokens);
    }
    write_.Give(gradient + ids_ + scalars_);
    write_.FinishGradient(tokens, is_first_);
  }

  const TransformerShape& shape_;
  const RoundShape& round_;
  const TransformerTensors& model_;
  const Trace& trace_;
  TraceWriter write_;
  const int64_t tokens_;
  const int64_t x_;
  const int64_t inner_;
  const int64_t embedded_;
  const int64_t statistics_;
  const int64_t row_sums_;
  const int64_t scores_;  // 0 where they are not kept; so is widened_, a tensor like x_ in fp32.
  const int64_t widened_;
  const int64_t copies_;         // Of query, key and value, beside scores that are kept.
  const int64_t kept_products_;  // Of query, key and value themselves.
  const int64_t mask_;
  const int64_t logits_;
  const int64_t losses_;
  const int64_t labels_;   // Shifted.
  const int64_t scalars_;  // Beside the loss.
  const int64_t ids_;      // Of tokens and positions.
  bool is_first_ = true;
};

absl::Status CheckRound(const TransformerShape& shape, const RoundShape& round) {
  GEMINI_RETURN_IF_ERROR(CheckShape(shape));
  if (round.batch < 1 || round.sequence < 1 || round.micro_batches < 1 ||
      round.batch > kMaxTokens / round.sequence) {
    return absl::InvalidArgumentError(absl::StrCat(
        round.micro_batches, " micro-batches of ", round.batch, " sequences of ", round.sequence,
        " tokens: each must be at least 1, and a micro-batch have at most ", kMaxTokens,
        " tokens"));
  }
  if (round.sequence > shape.num_positions) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence of ", round.sequence,
                                                   " tokens: the model has ", shape.num_positions,
                                                   " positions"));
  }
  const double tokens = static_cast<double>(round.batch * round.sequence);
  const double widths = static_cast<double>(shape.num_layers) *
                            static_cast<double>(16 * shape.hidden + 4 * shape.inner) +
                        static_cast<double>(4 * shape.vocabulary);
  if (tokens * widths * kFp32Bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("activations of ", tokens * widths * kFp32Bytes,
                                                   " bytes: no machine has them"));
  }
  // Three passes over at most 16 layers' worth of tensors a block, and an addition for each tensor.
  const double operators =
      static_cast<double>(round.micro_batches) * static_cast<double>(shape.num_layers + 1) * 64;
  if (operators > kMaxOperators) {
    return absl::InvalidArgumentError(absl::StrCat(round.micro_batches, " micro-batches through ",
                                                   shape.num_layers, " layers: up to ", operators,
                                                   " operators, at most ", kMaxOperators));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TransformerTrace> MakeTransformerTrace(const TransformerShape& shape,
                                                      const RoundShape& round,
                                                      const ComputeRate& rate) {
  GEMINI_RETURN_IF_ERROR(CheckRound(shape, round));
  if (!(rate.flops_per_second > 0 && rate.memory_bytes_per_second > 0 && rate.kernel_ns >= 0)) {
    return absl::InvalidArgumentError("a rate of computing that is not above 0");
  }
  TransformerTrace out;
  out.trace.phase = round.train ? "train" : "eval";
  const TransformerTensors model = TensorsOf(shape);
  for (const ShapedTensor& tensor : model.tensors) {
    out.trace.tensors.push_back({.size_bytes = tensor.num_elements * ElementBytes(round.element),
                                 .group = TensorGroup::kTrainable,
                                 .format = round.format(),
                                 .states_on_nvme = round.states_on_nvme});
    out.tensor_names.push_back(tensor.name);
  }
  TransformerRound writer(shape, round, model, out, rate);
  for (int64_t i = 0; i < round.micro_batches; ++i) writer.MicroBatch(/*is_first=*/i == 0);
  writer.Finish();
  return out;
}

}  // namespace gemini::policies
