// SPDX-License-Identifier: Apache-2.0
// BERT, as BertForMaskedLM and BertForSequenceClassification of transformers: an encoder with norms
// after each part and a table of token types, whose masked tokens are predicted by the embedding's
// table behind a transform.
// Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
//         Understanding", arXiv:1810.04805; its configuration and model in transformers.
#include <cmath>
#include <cstddef>

#include "trainer/families/families.h"

namespace gemini::trainer {

ModelSpec MakeBertSpec(ConfigKeys& keys) {
  ModelSpec spec = {.vocab_size = 30522, .max_sequence = 512, .width = 768, .num_blocks = 12};
  keys.Size({"vocab_size"}, spec.vocab_size);
  keys.Size({"max_position_embeddings"}, spec.max_sequence);
  keys.Size({"hidden_size"}, spec.width);
  keys.NumBlocks({"num_hidden_layers"}, spec.num_blocks);
  spec.embedding_width = spec.width;
  // Absent means 0, the default of transformers; null means none.
  spec.padding_token = keys.IsNull("pad_token_id") ? -1 : 0;
  keys.Size({"pad_token_id"}, spec.padding_token, /*minimum=*/0);
  spec.positions = {.rows = spec.max_sequence};
  spec.num_token_types = 2;
  keys.Size({"type_vocab_size"}, spec.num_token_types);
  spec.embedding_norm = true;
  spec.norm.epsilon = 1e-12;
  keys.Positive("layer_norm_eps", spec.norm.epsilon);
  spec.order = BlockOrder::kNormsAfter;
  spec.final_norm = false;
  spec.residual_dropout = 0.1;
  keys.Probability("hidden_dropout_prob", spec.residual_dropout);
  spec.embedding_dropout = spec.residual_dropout;
  keys.NotNegative("initializer_range", spec.initial_deviation);

  AttentionSpec& attention = spec.attention;
  attention = {.causal = false, .num_heads = 12, .dropout = 0.1};
  keys.Size({"num_attention_heads"}, attention.num_heads);
  attention.num_kv_heads = attention.num_heads;
  attention.head_size = spec.width / attention.num_heads;
  attention.scale = std::pow(static_cast<double>(attention.head_size), -0.5);
  keys.Probability("attention_probs_dropout_prob", attention.dropout);

  spec.feed_forward = {.width = 3072, .activation = Activation::kGelu};
  keys.Size({"intermediate_size"}, spec.feed_forward.width);
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);

  spec.head_bias = true;
  spec.head_transform = spec.feed_forward.activation;
  spec.classifier = {
      .input = ClassifierInput::kPooledFirstToken, .bias = true, .dropout = spec.residual_dropout};
  keys.Probability("classifier_dropout", spec.classifier->dropout);

  // A decoder would be causal.
  keys.MustBeOff("is_decoder");
  keys.MustBeOff("add_cross_attention");
  keys.MustBeOff("quantization_config");
  keys.MustBeOn("tie_word_embeddings");
  size_t positions = 0;
  keys.OneOf({"position_embedding_type"}, {"absolute"}, positions);
  keys.MustDivide("hidden_size", spec.width, "num_attention_heads", attention.num_heads);
  keys.MustBeBelow("pad_token_id", spec.padding_token, "vocab_size", spec.vocab_size);
  // Of the files that Google converted. No model of transformers reads them.
  keys.Ignore({"directionality", "pooler_fc_size", "pooler_num_attention_heads",
               "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"});

  spec.layers = {.token_embedding = "bert.embeddings.word_embeddings",
                 .position_embedding = "bert.embeddings.position_embeddings",
                 .type_embedding = "bert.embeddings.token_type_embeddings",
                 .embedding_norm = "bert.embeddings.LayerNorm",
                 .blocks = "bert.encoder.layer",
                 .block = {.attention_norm = "attention.output.LayerNorm",
                           .query = "attention.self.query",
                           .key = "attention.self.key",
                           .value = "attention.self.value",
                           .attention_out = "attention.output.dense",
                           .feed_norm = "output.LayerNorm",
                           .feed = {.in = "intermediate.dense", .out = "output.dense"}},
                 .head_transform = "cls.predictions.transform.dense",
                 .head_norm = "cls.predictions.transform.LayerNorm",
                 .head = "cls.predictions",
                 .pooler = "bert.pooler.dense",
                 .classifier = "classifier"};
  spec.files = {.root = "bert.",
                .embedding = "bert.embeddings.word_embeddings.weight",
                .head = "cls.predictions.decoder.weight",
                // The positions' numbers, and a second name of the head's bias.
                .ignored_endings = {"embeddings.position_ids", "cls.predictions.decoder.bias"},
                .old_endings = {{"LayerNorm.gamma", "LayerNorm.weight"},
                                {"LayerNorm.beta", "LayerNorm.bias"}}};
  return spec;
}

}  // namespace gemini::trainer
