// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/token_head.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

namespace F = torch::nn::functional;
using ::testing::ElementsAre;
using torch::Tensor;

constexpr int64_t kVocabulary = 30, kWidth = 8;

void ExpectClose(const Tensor& ours, const Tensor& expected) {
  EXPECT_TRUE(torch::allclose(ours, expected, /*rtol=*/1e-4, /*atol=*/1e-5)) << ours << "\n"
                                                                             << expected;
}

Tensor SumOfCrossEntropies(const Tensor& logits, const Tensor& labels) {
  return F::cross_entropy(logits.flatten(0, 1), labels.flatten(),
                          F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-1));
}

class TokenHeadTest : public ::testing::Test {
 protected:
  TokenHeadTest() {
    torch::manual_seed(5);
    hidden_ = torch::randn({2, 4, kWidth}, torch::requires_grad());
    labels_ = torch::tensor({3, -1, 29, 0, -1, 7, -1, 11}).view({2, 4});
    spec_.vocab_size = kVocabulary;
    spec_.embedding_width = kWidth;
    spec_.layers.head = "lm_head";
  }
  void Make() {
    PlainLayers layers(torch::kFloat32);
    table_ = layers.TokenEmbedding(kVocabulary, kWidth, /*padding_token=*/-1);
    head_ = std::make_unique<TokenHead>(root_, spec_, layers, table_);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : root_.parameters()) parameter.normal_();
    for (Tensor& parameter : table_->parameters()) parameter.normal_();
  }
  Tensor Parameter(const std::string& name) const { return root_.named_parameters()[name]; }
  BatchLoss Loss() const { return head_->LossOf({.hidden = hidden_}, {labels_, 5}, LossFactors()); }

  ModelSpec spec_;
  torch::nn::Module root_;
  std::shared_ptr<VocabularyTable> table_;
  std::unique_ptr<TokenHead> head_;
  Tensor hidden_;
  Tensor labels_;
};

TEST_F(TokenHeadTest, ACausalTokenIsPredictedFromTheOneBefore) {
  spec_.tied_head = false;
  Make();
  EXPECT_THAT(root_.named_parameters().keys(), ElementsAre("lm_head.weight"));
  const Tensor logits = F::linear(hidden_, Parameter("lm_head.weight"));
  ExpectClose(head_->Logits({.hidden = hidden_}), logits);
  const BatchLoss loss = Loss();
  const Tensor expected = SumOfCrossEntropies(logits.slice(1, 0, -1), labels_.slice(1, 1));
  ExpectClose(loss.sum, expected);
  EXPECT_EQ(loss.count, 5);
  const Tensor gradient = torch::autograd::grad({loss.sum}, {hidden_})[0];
  ExpectClose(gradient, torch::autograd::grad({expected}, {hidden_})[0]);
  EXPECT_EQ(gradient.select(1, 3).count_nonzero().item<int64_t>(), 0);
}

TEST_F(TokenHeadTest, AMaskedTokenIsPredictedWhereItStands) {
  spec_.task.kind = TaskKind::kMasked;
  Make();
  EXPECT_TRUE(root_.parameters().empty());  // The table is the embedding's.
  const Tensor logits = F::linear(hidden_, table_->parameters()[0]);
  ExpectClose(head_->Logits({.hidden = hidden_}), logits);
  const BatchLoss loss = Loss();
  const Tensor expected = SumOfCrossEntropies(logits, labels_);
  ExpectClose(loss.sum, expected);
  const Tensor gradient = torch::autograd::grad({loss.sum}, {hidden_})[0];
  ExpectClose(gradient, torch::autograd::grad({expected}, {hidden_})[0]);
  EXPECT_EQ(gradient[1][2].count_nonzero().item<int64_t>(), 0);  // It has no label.
}

TEST_F(TokenHeadTest, ATransformAndABiasAreThoseOfTransformers) {
  spec_.task.kind = TaskKind::kMasked;
  spec_.head_bias = true;
  spec_.head_transform = Activation::kGelu;
  spec_.norm = {.epsilon = 0.1};
  spec_.layers.head = "cls.predictions";
  spec_.layers.head_transform = "cls.predictions.transform.dense";
  spec_.layers.head_norm = "cls.predictions.transform.LayerNorm";
  Make();
  EXPECT_THAT(root_.named_parameters().keys(),
              ElementsAre("cls.predictions.bias", "cls.predictions.transform.dense.weight",
                          "cls.predictions.transform.dense.bias",
                          "cls.predictions.transform.LayerNorm.weight",
                          "cls.predictions.transform.LayerNorm.bias"));
  const Tensor dense = F::linear(hidden_, Parameter("cls.predictions.transform.dense.weight"),
                                 Parameter("cls.predictions.transform.dense.bias"));
  const Tensor transformed = F::layer_norm(
      F::gelu(dense), F::LayerNormFuncOptions({kWidth})
                          .weight(Parameter("cls.predictions.transform.LayerNorm.weight"))
                          .bias(Parameter("cls.predictions.transform.LayerNorm.bias"))
                          .eps(0.1));
  const Tensor logits =
      F::linear(transformed, table_->parameters()[0], Parameter("cls.predictions.bias"));
  ExpectClose(head_->Logits({.hidden = hidden_}), logits);
  const BatchLoss loss = Loss();
  const Tensor expected = SumOfCrossEntropies(logits, labels_);
  ExpectClose(loss.sum, expected);
  std::vector<Tensor> inputs = root_.parameters();
  inputs.push_back(hidden_);
  inputs.push_back(table_->parameters()[0]);
  // Leaves get the head's gradients in backward itself.
  loss.sum.backward();
  const std::vector<Tensor> plain = torch::autograd::grad({expected}, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) ExpectClose(inputs[i].grad(), plain[i]);
}

TEST_F(TokenHeadTest, TokensHaveNoHits) {
  spec_.task.kind = TaskKind::kMasked;
  Make();
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(Loss().hits.defined());
}

}  // namespace
}  // namespace gemini::trainer
