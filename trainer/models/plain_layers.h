// SPDX-License-Identifier: Apache-2.0
// Makes whole layers on one rank, with the operators of transformers, so that bits agree.
#pragma once
#include <cstdint>
#include <memory>

#include "torch/types.h"
#include "trainer/families/vocabulary_cut.h"
#include "trainer/layer_set.h"

namespace gemini::trainer {

class PlainLayers : public LayerSet {
 public:
  // `options` are those of the parameters: a floating dtype, any device.
  explicit PlainLayers(const torch::TensorOptions& options,
                       const VocabularyOptions& vocabulary = {})
      : options_(options), vocabulary_(vocabulary) {}
  std::shared_ptr<VocabularyTable> TokenEmbedding(int64_t vocabulary, int64_t width,
                                                  int64_t padding_token) override;
  std::shared_ptr<Layer> PositionEmbedding(int64_t rows, int64_t width) override;
  std::shared_ptr<Layer> Patches(const ImageSpec& image, int64_t width) override;
  std::shared_ptr<Layer> ImageTokens(const ImageSpec& image, int64_t width) override;
  std::shared_ptr<Layer> Norm(const NormSpec& norm, int64_t width) override;
  std::shared_ptr<Layer> HeadNorm(const AttentionSpec& attention, int64_t heads) override;
  std::shared_ptr<Layer> SharedInput() override { return nullptr; }
  std::shared_ptr<Layer> Linear(const LinearShape& shape, Role role) override;
  std::shared_ptr<HeadAttention> Attention(const AttentionSpec& attention) override;
  std::shared_ptr<HeadAndLoss> Head(const HeadShape& shape,
                                    std::shared_ptr<VocabularyTable> tied) override;

 private:
  const torch::TensorOptions options_;
  const VocabularyOptions vocabulary_;
};

}  // namespace gemini::trainer
