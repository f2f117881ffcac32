// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/transformer_shape.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gemini::policies {
namespace {

// Registers the tensors of one model after another.
class Registry {
 public:
  Registry(const TransformerShape& shape, std::vector<ShapedTensor>& tensors)
      : shape_(shape), tensors_(tensors) {}

  LayerTensors Embedding(std::string name, int64_t rows, int64_t size) {
    const int32_t weight = Add(name, "weight", rows * size);
    return {std::move(name), weight, -1};
  }
  LayerTensors Linear(std::string name, int64_t in, int64_t out, bool bias) {
    const int32_t weight = Add(name, "weight", in * out);
    const int32_t bias_index = bias ? Add(name, "bias", out) : -1;
    return {std::move(name), weight, bias_index};
  }
  LayerTensors Norm(std::string name) {
    if (!shape_.affine_norm) return {std::move(name), -1, -1};
    const int32_t weight = Add(name, "weight", shape_.hidden);
    const int32_t bias = Add(name, "bias", shape_.hidden);
    return {std::move(name), weight, bias};
  }

  BlockTensors Gpt2Block(const std::string& block) {
    const int64_t size = shape_.hidden;
    BlockTensors tensors;
    tensors.attention_norm = Norm(block + ".ln_1");
    tensors.projections = {Linear(block + ".attn.c_attn", size, 3 * size, shape_.bias)};
    tensors.attention_out = Linear(block + ".attn.c_proj", size, size, shape_.bias);
    tensors.feed_norm = Norm(block + ".ln_2");
    tensors.feed_in = Linear(block + ".mlp.c_fc", size, shape_.inner, shape_.bias);
    tensors.feed_out = Linear(block + ".mlp.c_proj", shape_.inner, size, shape_.bias);
    return tensors;
  }
  BlockTensors OptBlock(const std::string& block) {
    const int64_t size = shape_.hidden;
    const bool before = shape_.norm_before;
    BlockTensors tensors;
    if (before) tensors.attention_norm = Norm(block + ".self_attn_layer_norm");
    for (const char* part : {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj"}) {
      tensors.projections.push_back(Linear(block + part, size, size, shape_.bias));
    }
    tensors.attention_out = Linear(block + ".self_attn.out_proj", size, size, shape_.bias);
    if (!before) tensors.attention_norm = Norm(block + ".self_attn_layer_norm");
    if (before) tensors.feed_norm = Norm(block + ".final_layer_norm");
    tensors.feed_in = Linear(block + ".fc1", size, shape_.inner, shape_.bias);
    tensors.feed_out = Linear(block + ".fc2", shape_.inner, size, shape_.bias);
    if (!before) tensors.feed_norm = Norm(block + ".final_layer_norm");
    return tensors;
  }

 private:
  int32_t Add(const std::string& layer, const char* part, int64_t num_elements) {
    tensors_.push_back({absl::StrCat(layer, ".", part), num_elements});
    return static_cast<int32_t>(tensors_.size()) - 1;
  }

  const TransformerShape& shape_;
  std::vector<ShapedTensor>& tensors_;
};

}  // namespace

absl::Status CheckShape(const TransformerShape& shape) {
  // Products of two of them, times an element's bytes and the layers, stay in 63 bits.
  constexpr int64_t kMaxSize = int64_t{1} << 22;
  constexpr int64_t kMaxLayers = int64_t{1} << 14;
  const std::pair<const char*, int64_t> sizes[] = {{"hidden", shape.hidden},
                                                   {"num_heads", shape.num_heads},
                                                   {"inner", shape.inner},
                                                   {"vocabulary", shape.vocabulary},
                                                   {"num_positions", shape.num_positions},
                                                   {"embedding_size", shape.embedding_size}};
  for (const auto& [name, size] : sizes) {
    if (size < 1 || size > kMaxSize) {
      return absl::InvalidArgumentError(
          absl::StrCat("a model with ", name, " = ", size, ": it must be 1 to ", kMaxSize));
    }
  }
  if (shape.num_layers < 1 || shape.num_layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model of ", shape.num_layers, " layers: it must have 1 to ", kMaxLayers));
  }
  if (shape.hidden % shape.num_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden ", shape.hidden, " is not divisible by num_heads ", shape.num_heads));
  }
  const auto hidden = static_cast<double>(shape.hidden);
  const double parameters =
      static_cast<double>(shape.num_layers) *
          (4 * hidden * hidden + 2 * hidden * static_cast<double>(shape.inner)) +
      hidden * static_cast<double>(2 * shape.vocabulary + shape.num_positions);
  if (parameters > 0x1p56) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model of ", parameters, " parameters: its bytes would not fit 63 bits"));
  }
  return absl::OkStatus();
}

TransformerTensors TensorsOf(const TransformerShape& shape) {
  TransformerTensors model;
  Registry registry(shape, model.tensors);
  const bool is_gpt2 = shape.family == TransformerFamily::kGpt2;
  const std::string root = is_gpt2 ? "transformer" : "model.decoder";
  const bool projects = shape.embedding_size != shape.hidden;
  model.token_embedding = registry.Embedding(root + (is_gpt2 ? ".wte" : ".embed_tokens"),
                                             shape.vocabulary, shape.embedding_size);
  model.position_embedding = registry.Embedding(root + (is_gpt2 ? ".wpe" : ".embed_positions"),
                                                shape.num_positions, shape.hidden);
  if (projects) {
    model.project_in =
        registry.Linear(root + ".project_in", shape.embedding_size, shape.hidden, /*bias=*/false);
  }
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    model.blocks.push_back(is_gpt2 ? registry.Gpt2Block(absl::StrCat(root, ".h.", layer))
                                   : registry.OptBlock(absl::StrCat(root, ".layers.", layer)));
  }
  if (shape.final_norm) {
    model.final_norm = registry.Norm(root + (is_gpt2 ? ".ln_f" : ".final_layer_norm"));
  }
  if (projects) {
    model.project_out =
        registry.Linear(root + ".project_out", shape.hidden, shape.embedding_size, /*bias=*/false);
  }
  model.head = shape.tied_head ? LayerTensors{"lm_head", model.token_embedding.weight, -1}
                               : registry.Linear("lm_head", shape.embedding_size, shape.vocabulary,
                                                 /*bias=*/false);
  return model;
}

int64_t NumParameters(const TransformerShape& shape) {
  int64_t count = 0;
  for (const ShapedTensor& tensor : TensorsOf(shape).tensors) count += tensor.num_elements;
  return count;
}

}  // namespace gemini::policies
