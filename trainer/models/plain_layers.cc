// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/plain_layers.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/OpMathType.h"
#include "ATen/ops/addmm.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/rms_norm.h"
#include "trainer/models/attention.h"
#include "trainer/models/head_loss.h"
#include "trainer/models/image_layers.h"
#include "trainer/models/vocabulary_table.h"

namespace gemini::trainer {
namespace {

constexpr char kWeight[] = "weight";
constexpr char kBias[] = "bias";

// y = x W^T + b, weight [out, in].
class OutInLinear : public Layer {
 public:
  OutInLinear(const LinearShape& shape, const torch::TensorOptions& options) {
    register_parameter(kWeight, torch::empty({shape.out, shape.in}, options));
    if (shape.bias) register_parameter(kBias, torch::empty({shape.out}, options));
  }
  torch::Tensor Forward(const torch::Tensor& x) const override {
    return at::linear(x, Own(kWeight), Own(kBias));
  }
};

// y = x W + b, weight [in, out]: the Conv1D of GPT-2. It always has a bias.
class InOutLinear : public Layer {
 public:
  InOutLinear(const LinearShape& shape, const torch::TensorOptions& options) {
    TORCH_CHECK(shape.bias, "a matrix [in, out] without a bias");
    register_parameter(kWeight, torch::empty({shape.in, shape.out}, options));
    register_parameter(kBias, torch::empty({shape.out}, options));
  }
  torch::Tensor Forward(const torch::Tensor& x) const override {
    const torch::Tensor weight = Own(kWeight);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(1);
    return at::addmm(Own(kBias), x.view({-1, x.size(-1)}), weight).view(shape);
  }
};

class LayerNorm : public Layer {
 public:
  LayerNorm(const NormSpec& norm, int64_t width, const torch::TensorOptions& options)
      : width_(width), epsilon_(norm.epsilon) {
    if (!norm.affine) return;
    register_parameter(kWeight, torch::empty({width}, options));
    if (norm.bias) register_parameter(kBias, torch::empty({width}, options));
  }
  torch::Tensor Forward(const torch::Tensor& x) const override {
    return at::layer_norm(x, {width_}, Own(kWeight), Own(kBias), epsilon_);
  }

 private:
  const int64_t width_;
  const double epsilon_;
};

// `weight` may be undefined. `on_cpu`: as VocabularyOptions has it.
torch::Tensor RootMeanSquareNorm(const torch::Tensor& x, const torch::Tensor& weight,
                                 double epsilon, bool on_cpu) {
  // On a GPU it is one kernel, which keeps what that of a layer norm keeps. The meta device would
  // make it of those that a CPU has, which keep copies in fp32.
  if (x.is_meta() && !on_cpu) return at::layer_norm(x, {x.size(-1)}, weight, {}, epsilon);
  // Torch takes an undefined tensor for a weight.
  return at::rms_norm(x, {x.size(-1)}, weight.defined() ? std::optional(weight) : std::nullopt,
                      epsilon);
}

class RmsNorm : public Layer {
 public:
  RmsNorm(const NormSpec& norm, int64_t width, const torch::TensorOptions& options, bool on_cpu)
      : epsilon_(norm.epsilon), adds_one_(norm.adds_one), on_cpu_(on_cpu) {
    if (norm.affine) register_parameter(kWeight, torch::empty({width}, options));
  }
  torch::Tensor Forward(const torch::Tensor& x) const override {
    const torch::Tensor weight = Own(kWeight);
    if (!adds_one_) return RootMeanSquareNorm(x, weight, epsilon_, on_cpu_);
    // In fp32 (or fp64), and rounded once: in 16 bits 1 + weight would lose the weight's last bits.
    const auto type = at::toOpMathType(x.scalar_type());
    const torch::Tensor normed =
        RootMeanSquareNorm(x.to(type), weight.to(type) + 1, epsilon_, on_cpu_);
    return normed.to(x.scalar_type());
  }

 private:
  const double epsilon_;
  const bool adds_one_;  // It has a weight then.
  const bool on_cpu_;
};

// In fp32, and rounded once; of fp64 in that.
class PlainHeadNorm : public Layer {
 public:
  PlainHeadNorm(const NormSpec& norm, int64_t heads, int64_t head_size,
                const torch::TensorOptions& options, bool on_cpu)
      : norm_(norm), head_size_(head_size), on_cpu_(on_cpu) {
    register_parameter(kWeight, torch::empty({heads, head_size}, options));
  }
  torch::Tensor Forward(const torch::Tensor& x) const override {
    const auto type = at::toOpMathType(x.scalar_type());
    const torch::Tensor in = x.to(type);
    const torch::Tensor normed = norm_.kind == NormKind::kRms
                                     ? RootMeanSquareNorm(in, {}, norm_.epsilon, on_cpu_)
                                     : at::layer_norm(in, {head_size_}, {}, {}, norm_.epsilon);
    return (normed * Own(kWeight).to(type)).to(x.scalar_type());
  }

 private:
  const NormSpec norm_;
  const int64_t head_size_;
  const bool on_cpu_;
};

class PlainAttention : public HeadAttention {
 public:
  torch::Tensor Forward(const torch::Tensor& query, const torch::Tensor& key,
                        const torch::Tensor& value, const HeadAngles& angles,
                        const RowAttentionOptions& options) const override {
    return SelfAttention(query, key, value, angles, options);
  }
};

class PlainPositions : public Layer {
 public:
  PlainPositions(int64_t rows, int64_t width, const torch::TensorOptions& options) {
    register_parameter(kWeight, torch::empty({rows, width}, options));
  }
  torch::Tensor Forward(const torch::Tensor& ids) const override {
    return at::embedding(Own(kWeight), ids);
  }
};

// The tensors of a table, as a cut has them.
std::string BlockName(const VocabularyCut& cut, int64_t block) {
  return cut.num_blocks() == 1 ? kWeight : NameOfBlock(kWeight, block);
}

class PlainTable : public VocabularyTable {
 public:
  PlainTable(const VocabularyCut& cut, int64_t padding_token, const torch::TensorOptions& options)
      : cut_(cut), padding_token_(padding_token) {
    for (int64_t i = 0; i < cut.num_blocks(); ++i) {
      register_parameter(
          BlockName(cut, i),
          torch::empty({cut.first_row(i + 1) - cut.first_row(i), cut.width}, options));
    }
  }
  torch::Tensor Forward(const torch::Tensor& ids) const override {
    return LookUp(blocks(), cut_, ids, padding_token_);
  }
  std::vector<torch::Tensor> blocks() const override {
    std::vector<torch::Tensor> blocks;
    for (int64_t i = 0; i < cut_.num_blocks(); ++i) blocks.push_back(Own(BlockName(cut_, i)));
    return blocks;
  }

 private:
  const VocabularyCut cut_;
  const int64_t padding_token_;
};

class PlainHead : public HeadAndLoss {
 public:
  PlainHead(const HeadOptions& head, bool bias, std::shared_ptr<VocabularyTable> tied,
            const torch::TensorOptions& options)
      : head_(head), tied_(std::move(tied)) {
    for (int64_t i = 0; tied_ == nullptr && i < head.cut.num_blocks(); ++i) {
      register_parameter(
          BlockName(head.cut, i),
          torch::empty({head.cut.first_row(i + 1) - head.cut.first_row(i), head.cut.width},
                       options));
    }
    if (bias) register_parameter(kBias, torch::empty({head.cut.rows}, options));
  }
  torch::Tensor Logits(const torch::Tensor& hidden) const override {
    return HeadLogits(hidden, blocks(), head_, Own(kBias));
  }
  torch::Tensor SumOfLosses(const torch::Tensor& hidden, const torch::Tensor& labels,
                            double gradient) const override {
    return HeadLoss(hidden.flatten(0, -2), labels.flatten(), blocks(), head_, gradient, Own(kBias));
  }

 private:
  std::vector<torch::Tensor> blocks() const {
    if (tied_ != nullptr) return tied_->blocks();
    std::vector<torch::Tensor> blocks;
    for (int64_t i = 0; i < head_.cut.num_blocks(); ++i) {
      blocks.push_back(Own(BlockName(head_.cut, i)));
    }
    return blocks;
  }

  const HeadOptions head_;
  const std::shared_ptr<VocabularyTable> tied_;  // No child: its parameters are the embedding's.
};

}  // namespace

std::shared_ptr<VocabularyTable> PlainLayers::TokenEmbedding(int64_t vocabulary, int64_t width,
                                                             int64_t padding_token) {
  return std::make_shared<PlainTable>(CutTable(vocabulary, width, vocabulary_), padding_token,
                                      options_);
}

std::shared_ptr<Layer> PlainLayers::PositionEmbedding(int64_t rows, int64_t width) {
  return std::make_shared<PlainPositions>(rows, width, options_);
}

std::shared_ptr<Layer> PlainLayers::Patches(const ImageSpec& image, int64_t width) {
  return std::make_shared<PatchLayer>(image, width, options_);
}

std::shared_ptr<Layer> PlainLayers::ImageTokens(const ImageSpec& image, int64_t width) {
  return std::make_shared<ImageTokenLayer>(image, width, options_);
}

std::shared_ptr<Layer> PlainLayers::Norm(const NormSpec& norm, int64_t width) {
  if (norm.kind == NormKind::kRms) {
    return std::make_shared<RmsNorm>(norm, width, options_, vocabulary_.on_cpu);
  }
  return std::make_shared<LayerNorm>(norm, width, options_);
}

std::shared_ptr<Layer> PlainLayers::HeadNorm(const AttentionSpec& attention, int64_t heads) {
  if (!attention.norms_heads_apart) return Norm(*attention.head_norm, attention.head_size);
  return std::make_shared<PlainHeadNorm>(*attention.head_norm, heads, attention.head_size, options_,
                                         vocabulary_.on_cpu);
}

std::shared_ptr<Layer> PlainLayers::Linear(const LinearShape& shape, Role /*role*/) {
  if (shape.layout == MatrixLayout::kInOut) return std::make_shared<InOutLinear>(shape, options_);
  return std::make_shared<OutInLinear>(shape, options_);
}

std::shared_ptr<HeadAttention> PlainLayers::Attention(const AttentionSpec& /*attention*/) {
  return std::make_shared<PlainAttention>();
}

std::shared_ptr<HeadAndLoss> PlainLayers::Head(const HeadShape& shape,
                                               std::shared_ptr<VocabularyTable> tied) {
  const HeadOptions head = {.cut = CutTable(shape.vocabulary, shape.width, vocabulary_),
                            .on_cpu = vocabulary_.on_cpu,
                            .logit_scale = shape.logit_scale,
                            .soft_cap = shape.logit_soft_cap};
  return std::make_shared<PlainHead>(head, shape.bias, std::move(tied), options_);
}

}  // namespace gemini::trainer
