// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/parameter_store_reference.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/status_matchers.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adamw.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

// Two linear layers; `unused` never has a gradient.
struct Model : torch::nn::Module {
  Model() {
    first = register_module("first", torch::nn::Linear(33, 17));
    second = register_module("second", torch::nn::Linear(17, 5));
    unused = register_parameter("unused", torch::ones({3}));
  }
  torch::Tensor Loss(const torch::Tensor& input) {
    return second(torch::tanh(first(input))).square().mean();
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::Tensor unused;
};

absl::Status Fill(ReferenceParameterStore& store, const torch::nn::Module& from) {
  for (const auto& item : from.named_parameters()) {
    const torch::Tensor value = item.value().detach().contiguous();
    const absl::Status status = store.Write(
        item.key(), ChunkKind::kParam, [&](int64_t offset, absl::Span<std::byte> bytes) {
          std::memcpy(bytes.data(), static_cast<const char*>(value.const_data_ptr()) + offset,
                      bytes.size());
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

class ParameterStoreReferenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(3);
    ASSERT_OK_AND_ASSIGN(store_, ReferenceParameterStore::Create(ours_, optimizer_, {}));
    ASSERT_OK(Fill(*store_, theirs_));
  }
  const client::OptimizerSpec optimizer_ = {
      .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
  Model theirs_;
  Model ours_;
  std::unique_ptr<ReferenceParameterStore> store_;
};

TEST_F(ParameterStoreReferenceTest, ParametersStartAtTheBoundariesThatChunksGiveThem) {
  for (const auto& item : ours_.named_parameters()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(item.value().data_ptr()) % 256, 0u) << item.key();
  }
}

// Twenty steps against torch::optim::AdamW with clipping by torch; the bound is the issue's.
TEST_F(ParameterStoreReferenceTest, FollowsTheOptimizerOfTorch) {
  std::vector<torch::Tensor> decayed = {theirs_.first->weight, theirs_.second->weight};
  std::vector<torch::Tensor> others = {theirs_.first->bias, theirs_.second->bias, theirs_.unused};
  const auto options = [&](double decay) {
    return torch::optim::AdamWOptions(1e-2).betas({0.9, 0.99}).eps(1e-8).weight_decay(decay);
  };
  torch::optim::AdamW optimizer(
      {torch::optim::OptimizerParamGroup(
           decayed, std::make_unique<torch::optim::AdamWOptions>(options(0.1))),
       torch::optim::OptimizerParamGroup(others,
                                         std::make_unique<torch::optim::AdamWOptions>(options(0)))},
      options(0));
  for (int step = 0; step < 20; ++step) {
    const torch::Tensor input = torch::randn({8, 33});
    optimizer.zero_grad();
    theirs_.Loss(input).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(theirs_.parameters(), 0.05);
    optimizer.step();
    ours_.zero_grad();
    ours_.Loss(input).backward();
    ASSERT_OK_AND_ASSIGN(const client::StepResult result,
                         store_->Update({.learning_rate = 1e-2, .max_grad_norm = 0.05}));
    EXPECT_NEAR(result.grad_norm, norm, 1e-5 * norm);
  }
  for (const auto& item : theirs_.named_parameters()) {
    const torch::Tensor difference = ours_.named_parameters()[item.key()] - item.value();
    EXPECT_LE(difference.norm().item<double>(), 1e-6 * item.value().norm().item<double>())
        << item.key();
  }
  EXPECT_THAT(store_->TensorStep("first.weight"), IsOkAndHolds(20));
  EXPECT_THAT(store_->TensorStep("unused"), IsOkAndHolds(0));
}

TEST_F(ParameterStoreReferenceTest, AGradientThatIsNotFiniteIsNamedAndChangesNothing) {
  ours_.Loss(torch::randn({8, 33})).backward();
  ours_.second->bias.mutable_grad()[2] = std::numeric_limits<float>::infinity();
  const torch::Tensor before = ours_.first->weight.detach().clone();
  EXPECT_THAT(store_->Update({.learning_rate = 1e-2}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("second.bias")));
  EXPECT_TRUE(torch::equal(ours_.first->weight, before));
  EXPECT_THAT(store_->TensorStep("first.weight"), IsOkAndHolds(0));
}

TEST_F(ParameterStoreReferenceTest, WhatIsReadAndWrittenBackContinuesTheSame) {
  Model other;
  ASSERT_OK_AND_ASSIGN(const auto copy, ReferenceParameterStore::Create(other, optimizer_, {}));
  ours_.Loss(torch::ones({8, 33})).backward();
  ASSERT_OK(store_->Update({.learning_rate = 1e-2}));
  for (const auto& item : ours_.named_parameters()) {
    for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
      std::vector<std::byte> bytes;
      ASSERT_OK(store_->Read(item.key(), kind, [&](int64_t, absl::Span<const std::byte> piece) {
        bytes.insert(bytes.end(), piece.begin(), piece.end());
        return absl::OkStatus();
      }));
      ASSERT_OK(copy->Write(item.key(), kind, [&](int64_t offset, absl::Span<std::byte> piece) {
        std::memcpy(piece.data(), bytes.data() + offset, piece.size());
        return absl::OkStatus();
      }));
    }
    ASSERT_OK_AND_ASSIGN(const int64_t step, store_->TensorStep(item.key()));
    ASSERT_OK(copy->SetTensorStep(item.key(), step));
  }
  for (Model* model : {&ours_, &other}) {
    model->zero_grad();
    model->Loss(torch::ones({8, 33})).backward();
  }
  ASSERT_OK(store_->Update({.learning_rate = 1e-2}));
  ASSERT_OK(copy->Update({.learning_rate = 1e-2}));
  for (const auto& item : ours_.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), other.named_parameters()[item.key()])) << item.key();
  }
}

TEST_F(ParameterStoreReferenceTest, UnknownNamesAreNotFound) {
  EXPECT_THAT(store_->TensorStep("nobody"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace gemini::trainer
