// SPDX-License-Identifier: Apache-2.0
// The parameters of a GPT-2-like or OPT-like language model, from its dimensions alone.
// Order:  that of first use in forward, as trainer/models/transformer.cc registers them; the names
//         are those of transformers. A tied head is no tensor of its own.
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; Zhang et
//         al., "OPT: Open Pre-trained Transformer Language Models", arXiv:2205.01068.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gemini::policies {

enum class TransformerFamily : uint8_t {
  kGpt2,  // One matrix for query, key and value.
  kOpt,   // One each.
};

// All counts >= 1; `hidden` is a multiple of num_heads.
struct TransformerShape {
  TransformerFamily family = TransformerFamily::kGpt2;
  int64_t num_layers = 12;
  int64_t hidden = 768;
  int64_t num_heads = 12;
  int64_t inner = 3072;  // Width between the two matrices of the feed-forward part.
  int64_t vocabulary = 50257;
  int64_t num_positions = 1024;  // Rows of the position embedding.
  int64_t embedding_size = 768;  // Not `hidden`: projected into and out of it, as in OPT-350m.
  bool tied_head = true;         // The head is the token embedding.
  bool norm_before = true;       // Layer norms before each part, or after it.
  bool final_norm = true;
  bool bias = true;                    // Of the linear layers in blocks.
  bool affine_norm = true;             // Layer norms have weights.
  bool activation_keeps_input = true;  // GELU; the backward of ReLU needs its output alone.
  bool dropout = true;                 // After both parts of a block.
  bool embedding_dropout = true;       // After the embeddings.
  bool attention_dropout = false;      // Of the scores. A GPU's fused attention draws it inside.
};

struct ShapedTensor {
  std::string name;
  int64_t num_elements = 0;
};

// A layer's tensors, by index; -1: it has none.
struct LayerTensors {
  std::string name;  // Of the layer: "transformer.h.0.ln_1".
  int32_t weight = -1;
  int32_t bias = -1;
};

struct BlockTensors {
  LayerTensors attention_norm;
  std::vector<LayerTensors> projections;  // Of query, key and value: one layer, or three.
  LayerTensors attention_out;
  LayerTensors feed_norm;
  LayerTensors feed_in;
  LayerTensors feed_out;
};

struct TransformerTensors {
  std::vector<ShapedTensor> tensors;
  LayerTensors token_embedding;
  LayerTensors position_embedding;
  LayerTensors project_in;  // Without tensors where embedding_size is `hidden`.
  std::vector<BlockTensors> blocks;
  LayerTensors final_norm;
  LayerTensors project_out;
  LayerTensors head;  // Tied: the token embedding's weight.
};

// INVALID_ARGUMENT: a dimension is out of its range, or the bytes would not fit int64_t.
absl::Status CheckShape(const TransformerShape& shape);

// CheckShape(shape) is OK.
TransformerTensors TensorsOf(const TransformerShape& shape);
int64_t NumParameters(const TransformerShape& shape);

}  // namespace gemini::policies
