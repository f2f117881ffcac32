// SPDX-License-Identifier: Apache-2.0
// The config.json of a Hugging Face model, checked: every key that changes the arithmetic is either
// honoured or refused by name.
// Errors: INVALID_ARGUMENT: not JSON, a value of the wrong type or out of its range. UNIMPLEMENTED:
// a model type, activation or option that we do not have; the message lists what we have.
#pragma once
#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

enum class Activation : uint8_t { kRelu, kGelu, kGeluTanh };

struct Gpt2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_inner = 4 * 768;
  Activation activation = Activation::kGeluTanh;
  double resid_pdrop = 0.1;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;
};

struct OptConfig {
  int64_t vocab_size = 50272;
  int64_t max_position_embeddings = 2048;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t ffn_dim = 3072;
  int64_t word_embed_proj_dim = 768;
  int64_t pad_token_id = 1;  // The embedding's row of this token gets no gradient; -1 for none.
  Activation activation = Activation::kRelu;
  double dropout = 0.1;
  double attention_dropout = 0.0;
  bool do_layer_norm_before = true;
  bool remove_final_layer_norm = false;
  bool enable_bias = true;
  bool layer_norm_elementwise_affine = true;
  bool tie_word_embeddings = true;

  bool has_projections() const { return word_embed_proj_dim != hidden_size; }
  bool has_final_layer_norm() const { return do_layer_norm_before && !remove_final_layer_norm; }
};

struct HfConfig {
  std::variant<Gpt2Config, OptConfig> model;
  std::string json;  // The text as read: saving keeps every field.

  absl::string_view model_type() const;  // "gpt2" or "opt".
  int64_t vocab_size() const;
  int64_t max_sequence() const;  // Number of positions.
  int64_t width() const;         // Width of a block's input and output, for each token.
  int64_t num_blocks() const;
  bool tie_word_embeddings() const;
};

// Parses a config; `where` names the source in messages.
absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json, absl::string_view where);
// Reads `directory`/config.json. NOT_FOUND: no directory, or no such file in it.
absl::StatusOr<HfConfig> ReadHfConfig(const std::string& directory);

}  // namespace gemini::trainer
