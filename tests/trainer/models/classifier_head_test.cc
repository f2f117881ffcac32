// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/classifier_head.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/models/counter_dropout.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

namespace F = torch::nn::functional;
using ::testing::ElementsAre;
using torch::Tensor;

constexpr int64_t kRows = 4, kSequence = 5, kWidth = 8, kSite = 9;

// A head with values of its own, and hidden states for it.
class ClassifierHeadTest : public ::testing::Test {
 protected:
  ClassifierHeadTest() {
    torch::manual_seed(3);
    hidden_ = torch::randn({kRows, kSequence, kWidth}, torch::requires_grad());
  }
  void Make(ProblemType problem, int64_t num_labels, ClassifierSpec classifier = {}) {
    ModelSpec spec = {.embedding_width = kWidth, .classifier = classifier};
    spec.task = {TaskKind::kSequenceClassification, problem, num_labels};
    spec.layers.pooler = "bert.pooler.dense";
    spec.layers.classifier = "score";
    PlainLayers layers(torch::kFloat32);
    head_ = std::make_unique<ClassifierHead>(root_, spec, layers, kSite);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : root_.parameters()) parameter.normal_();
  }
  Tensor Parameter(const std::string& name) const { return root_.named_parameters()[name]; }
  // The logits of the last tokens.
  Tensor LastLogits() const {
    return F::linear(hidden_.select(1, kSequence - 1), Parameter("score.weight"));
  }
  BatchLoss LossOf(const Tensor& values, int64_t count) const {
    return head_->LossOf({.hidden = hidden_}, {values, count}, LossFactors());
  }
  // The hits of logits: the hidden states are these, and the head hands them on.
  std::vector<int64_t> HitsOf(const Tensor& logits, const Tensor& labels) {
    const torch::NoGradGuard no_grad;
    Parameter("score.weight").copy_(torch::eye(logits.size(-1), kWidth));
    const Tensor hidden = torch::constant_pad_nd(logits, {0, kWidth - logits.size(-1)});
    const BatchLoss loss =
        head_->LossOf({.hidden = hidden.unsqueeze(1)}, {labels, labels.numel()}, LossFactors());
    EXPECT_TRUE(loss.hits.defined());
    EXPECT_EQ(loss.hits.scalar_type(), torch::kInt64);
    return {loss.hits.const_data_ptr<int64_t>(),
            loss.hits.const_data_ptr<int64_t>() + loss.hits.numel()};
  }
  // The gradients of the sum for the hidden states and the matrix.
  std::vector<Tensor> GradientsOf(const Tensor& sum) const {
    return torch::autograd::grad({sum}, {hidden_, Parameter("score.weight")});
  }

  torch::nn::Module root_;
  std::unique_ptr<ClassifierHead> head_;
  Tensor hidden_;
};

void ExpectClose(const Tensor& ours, const Tensor& expected) {
  EXPECT_TRUE(torch::allclose(ours, expected, /*rtol=*/1e-5, /*atol=*/1e-6)) << ours << "\n"
                                                                             << expected;
}

TEST_F(ClassifierHeadTest, TheLastTokenThatIsNoPaddingIsRead) {
  Make(ProblemType::kSingleLabel, 3);
  EXPECT_THAT(root_.named_parameters().keys(), ElementsAre("score.weight"));
  const torch::NoGradGuard no_grad;
  ExpectClose(head_->Logits({.hidden = hidden_}), LastLogits());
  const auto documents = std::make_shared<RowDocuments>(RowDocuments{{{3}, {5}, {1}, {4}}});
  const Tensor read = torch::stack({hidden_[0][2], hidden_[1][4], hidden_[2][0], hidden_[3][3]});
  ExpectClose(head_->Logits({.hidden = hidden_, .documents = documents}),
              F::linear(read, Parameter("score.weight")));
}

TEST_F(ClassifierHeadTest, ThePoolerReadsTheFirstToken) {
  Make(ProblemType::kSingleLabel, 3, {.input = ClassifierInput::kPooledFirstToken, .bias = true});
  EXPECT_THAT(root_.named_parameters().keys(),
              ElementsAre("bert.pooler.dense.weight", "bert.pooler.dense.bias", "score.weight",
                          "score.bias"));
  const torch::NoGradGuard no_grad;
  const Tensor pooled = F::linear(hidden_.select(1, 0), Parameter("bert.pooler.dense.weight"),
                                  Parameter("bert.pooler.dense.bias"))
                            .tanh();
  const Tensor expected = F::linear(pooled, Parameter("score.weight"), Parameter("score.bias"));
  ExpectClose(head_->Logits({.hidden = hidden_}), expected);
  const auto documents = std::make_shared<RowDocuments>(RowDocuments{{{3}, {5}, {1}, {4}}});
  ExpectClose(head_->Logits({.hidden = hidden_, .documents = documents}), expected);
}

TEST_F(ClassifierHeadTest, TheFirstTokenIsReadAsItIs) {
  Make(ProblemType::kSingleLabel, 3, {.input = ClassifierInput::kFirstToken, .bias = true});
  EXPECT_THAT(root_.named_parameters().keys(), ElementsAre("score.weight", "score.bias"));
  const torch::NoGradGuard no_grad;
  ExpectClose(head_->Logits({.hidden = hidden_}),
              F::linear(hidden_.select(1, 0), Parameter("score.weight"), Parameter("score.bias")));
}

TEST_F(ClassifierHeadTest, WhatItReadsIsDroppedInTrainingByItsOwnSite) {
  Make(ProblemType::kSingleLabel, 3, {.dropout = 0.5});
  const torch::NoGradGuard no_grad;
  ExpectClose(head_->Logits({.hidden = hidden_}), LastLogits());
  const DropoutDraw draw = {.seed = 4, .step = 2};
  const Tensor kept =
      DropOut(hidden_.select(1, kSequence - 1).contiguous(), MaskOf(draw, kSite, 0.5));
  ASSERT_FALSE(torch::equal(kept, hidden_.select(1, kSequence - 1)));
  ExpectClose(head_->Logits({.hidden = hidden_, .dropout = draw}),
              F::linear(kept, Parameter("score.weight")));
}

TEST_F(ClassifierHeadTest, OfASingleLabelTheLossIsTheCrossEntropy) {
  Make(ProblemType::kSingleLabel, 3);
  const Tensor labels = torch::tensor({2, -1, 0, 2}, torch::kInt64);
  const BatchLoss loss = LossOf(labels, 3);
  const Tensor expected =
      F::cross_entropy(LastLogits().index({torch::tensor({0, 2, 3})}), torch::tensor({2, 0, 2}),
                       F::CrossEntropyFuncOptions().reduction(torch::kSum));
  EXPECT_EQ(loss.count, 3);
  EXPECT_EQ(loss.sum.dim(), 0);
  ExpectClose(loss.sum, expected);
  const std::vector<Tensor> ours = GradientsOf(loss.sum), plain = GradientsOf(expected);
  for (size_t i = 0; i < ours.size(); ++i) ExpectClose(ours[i], plain[i]);
  EXPECT_EQ(ours[0][1].count_nonzero().item<int64_t>(), 0);  // The row without a label.
}

TEST_F(ClassifierHeadTest, OfSeveralLabelsTheLossIsTheBinaryCrossEntropyOfEach) {
  Make(ProblemType::kMultiLabel, 2);
  const float nan = std::nanf("");
  const Tensor labels = torch::tensor({0.f, 1.f, nan, nan, 1.f, 1.f, 1.f, nan}).view({4, 2});
  const BatchLoss loss = LossOf(labels, 5);
  const Tensor there = torch::tensor({0, 1, 4, 5, 6});
  const Tensor expected = F::binary_cross_entropy_with_logits(
      LastLogits().flatten().index({there}), labels.flatten().index({there}),
      F::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kSum));
  EXPECT_EQ(loss.count, 5);
  ExpectClose(loss.sum, expected);
  const std::vector<Tensor> ours = GradientsOf(loss.sum), plain = GradientsOf(expected);
  for (size_t i = 0; i < ours.size(); ++i) ExpectClose(ours[i], plain[i]);
  EXPECT_EQ(ours[0][1].count_nonzero().item<int64_t>(), 0);
}

TEST_F(ClassifierHeadTest, OfARegressionTheLossIsTheSquaredErrorOfEach) {
  Make(ProblemType::kRegression, 2);
  const float nan = std::nanf("");
  const Tensor labels = torch::tensor({0.5f, -3.f, nan, nan, 1e3f, 0.f, nan, 2.f}).view({4, 2});
  const BatchLoss loss = LossOf(labels, 5);
  const Tensor there = torch::tensor({0, 1, 4, 5, 7});
  const Tensor expected =
      F::mse_loss(LastLogits().flatten().index({there}), labels.flatten().index({there}),
                  F::MSELossFuncOptions().reduction(torch::kSum));
  ExpectClose(loss.sum, expected);
  const std::vector<Tensor> ours = GradientsOf(loss.sum), plain = GradientsOf(expected);
  for (size_t i = 0; i < ours.size(); ++i) ExpectClose(ours[i], plain[i]);
  EXPECT_EQ(ours[0][1].count_nonzero().item<int64_t>(), 0);
  // An evaluation has no hits: a number is not right or wrong.
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(LossOf(labels, 5).hits.defined());
}

TEST_F(ClassifierHeadTest, WithoutAnyLabelTheSumAndItsGradientAreZero) {
  for (const ProblemType problem :
       {ProblemType::kSingleLabel, ProblemType::kMultiLabel, ProblemType::kRegression}) {
    root_ = torch::nn::Module();
    Make(problem, 2);
    const BatchLoss loss =
        LossOf(problem == ProblemType::kSingleLabel ? torch::full({kRows}, -1, torch::kInt64)
                                                    : torch::full({kRows, 2}, std::nanf("")),
               0);
    EXPECT_EQ(loss.sum.item<double>(), 0);
    for (const Tensor& gradient : GradientsOf(loss.sum)) {
      EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 0);
    }
  }
}

TEST_F(ClassifierHeadTest, HitsAreCountedWithoutGradModeAlone) {
  Make(ProblemType::kSingleLabel, 3);
  EXPECT_FALSE(LossOf(torch::zeros({kRows}, torch::kInt64), kRows).hits.defined());
  root_ = torch::nn::Module();
  Make(ProblemType::kMultiLabel, 3);
  EXPECT_FALSE(LossOf(torch::zeros({kRows, 3}), 3 * kRows).hits.defined());
}

TEST_F(ClassifierHeadTest, UpToFiveClassesHaveFirstHitsAlone) {
  Make(ProblemType::kSingleLabel, 5);
  const Tensor logits = torch::tensor({1.f, 2.f, 3.f, 4.f, 5.f}).repeat({4, 1});
  EXPECT_THAT(HitsOf(logits, torch::tensor({4, 3, 4, -1})), ElementsAre(2));
}

TEST_F(ClassifierHeadTest, MoreThanFiveClassesHaveHitsAmongFive) {
  Make(ProblemType::kSingleLabel, 7);
  const Tensor logits = torch::tensor({7.f, 1.f, 6.f, 2.f, 5.f, 3.f, 4.f}).repeat({5, 1});
  // The first choice, the fifth, the sixth, the last, and no label.
  EXPECT_THAT(HitsOf(logits, torch::tensor({0, 5, 3, 1, -1})), ElementsAre(1, 2));
}

TEST_F(ClassifierHeadTest, OfSeveralLabelsEachIsRightOrWrong) {
  Make(ProblemType::kMultiLabel, 7);
  const float nan = std::nanf("");
  const Tensor logits = torch::tensor({3.f, -3.f, 0.1f, -0.1f, -0.2f, -2.f, 2.f}).view({1, 7});
  const Tensor labels = torch::tensor({1.f, 0.f, 0.f, 1.f, 0.f, nan, nan}).view({1, 7});
  EXPECT_THAT(HitsOf(logits, labels), ElementsAre(3));
}

}  // namespace
}  // namespace gemini::trainer
