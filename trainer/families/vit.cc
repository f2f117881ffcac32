// SPDX-License-Identifier: Apache-2.0
// ViT, as ViTForImageClassification of transformers: an encoder of the patches of an image, whose
// class token is classified.
// Source: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at
//         Scale", arXiv:2010.11929; its configuration and model in transformers.
#include <cmath>
#include <utility>

#include "trainer/families/families.h"

namespace gemini::trainer {

ModelSpec MakeVitSpec(ConfigKeys& keys) {
  ModelSpec spec = {.width = 768, .num_blocks = 12};
  keys.Size({"hidden_size"}, spec.width);
  keys.NumBlocks({"num_hidden_layers"}, spec.num_blocks);
  spec.embedding_width = spec.width;
  ImageSpec image = {
      .channels = 3, .height = 224, .width = 224, .patch_height = 16, .patch_width = 16};
  keys.Size({"num_channels"}, image.channels);
  keys.HeightAndWidth("image_size", image.height, image.width);
  keys.HeightAndWidth("patch_size", image.patch_height, image.patch_width);
  // Their products stay in 63 bits.
  for (const auto& [name, value] : {std::pair("num_channels", image.channels),
                                    std::pair("the height of image_size", image.height),
                                    std::pair("the width of image_size", image.width)}) {
    keys.MustNotExceed(name, value, "the most that is known", 1 << 14);
  }
  keys.MustDivide("the height of image_size", image.height, "that of patch_size",
                  image.patch_height);
  keys.MustDivide("the width of image_size", image.width, "that of patch_size", image.patch_width);
  spec.image = image;
  spec.max_sequence = 1 + image.num_patches();
  spec.norm.epsilon = 1e-12;
  keys.Positive("layer_norm_eps", spec.norm.epsilon);
  keys.Probability("hidden_dropout_prob", spec.residual_dropout);
  spec.embedding_dropout = spec.residual_dropout;
  keys.NotNegative("initializer_range", spec.initial_deviation);

  AttentionSpec& attention = spec.attention;
  attention = {.causal = false, .num_heads = 12};
  keys.Size({"num_attention_heads"}, attention.num_heads);
  attention.num_kv_heads = attention.num_heads;
  attention.head_size = spec.width / attention.num_heads;
  attention.scale = std::pow(static_cast<double>(attention.head_size), -0.5);
  keys.Flag("qkv_bias", attention.bias);
  keys.Probability("attention_probs_dropout_prob", attention.dropout);
  keys.MustDivide("hidden_size", spec.width, "num_attention_heads", attention.num_heads);

  spec.feed_forward = {.width = 3072, .activation = Activation::kGelu};
  keys.Size({"intermediate_size"}, spec.feed_forward.width);
  keys.ActivationKey("hidden_act", spec.feed_forward.activation);

  spec.tied_head = false;
  spec.classifier = {.input = ClassifierInput::kFirstToken, .bias = true};
  keys.MustBeOff("quantization_config");
  // These are of masked images, and of a pooler that the classifier does not read.
  keys.Ignore({"encoder_stride", "pooler_act", "pooler_output_size"});

  spec.layers = {.image_tokens = "vit.embeddings",
                 .patches = "vit.embeddings.patch_embeddings.projection",
                 .blocks = "vit.encoder.layer",
                 .block = {.attention_norm = "layernorm_before",
                           .query = "attention.attention.query",
                           .key = "attention.attention.key",
                           .value = "attention.attention.value",
                           .attention_out = "attention.output.dense",
                           .feed_norm = "layernorm_after",
                           .feed = {.in = "intermediate.dense", .out = "output.dense"}},
                 .final_norm = "vit.layernorm",
                 .classifier = "classifier"};
  // What follows the root is of ViTForMaskedImageModeling.
  spec.files = {
      .root = "vit.", .other_heads = {"decoder."}, .ignored_endings = {"embeddings.mask_token"}};
  return spec;
}

}  // namespace gemini::trainer
