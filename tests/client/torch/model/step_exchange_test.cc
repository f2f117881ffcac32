// SPDX-License-Identifier: Apache-2.0
// Steps of a model of which a process has a part: they go by what all processes agree on.
#include "client/update/step_exchange.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "client/torch/hook/scoped_fetch.h"
#include "tests/client/torch/training_fixture.h"
#include "torch/nn/module.h"

namespace gemini::client::hooks {
namespace {

using ::testing::HasSubstr;
using ::testing::Test;

// Notes what it is asked, and answers as one process does, unless an answer is given.
class NotedExchange final : public StepExchange {
 public:
  absl::StatusOr<std::optional<double>> AgreeOnNorm(
      const absl::StatusOr<SquaresByTensor>& own) override {
    owns.push_back(own);
    return answer.has_value() ? *answer : alone_.AgreeOnNorm(own);
  }
  absl::Status CompleteTrustSquares(absl::Span<TrustSquares> squares) override {
    trusts.emplace_back(squares.begin(), squares.end());
    return trust_status;
  }

  std::vector<absl::StatusOr<SquaresByTensor>> owns;
  std::vector<std::vector<TrustSquares>> trusts;
  std::optional<absl::StatusOr<std::optional<double>>> answer;
  absl::Status trust_status;

 private:
  NoExchange alone_;
};

constexpr int64_t kRows = 64;
constexpr int64_t kColumns = 90;  // 5,760 elements: six blocks, of which the last is not whole.
constexpr int64_t kCut = 2 * kNormBlockElements;
constexpr int64_t kOuts = 10;

// A matrix, a vector and a matrix that is not used in every step.
struct Whole : torch::nn::Module {
  Whole() {
    torch::manual_seed(1);
    first = register_parameter("first", torch::randn({kRows, kColumns}));
    bias = register_parameter("bias", torch::randn({kColumns}));
    second = register_parameter("second", torch::randn({kColumns, kOuts}));
  }
  at::Tensor first, bias, second;
};

// Parts of the same: a process has one of these.
struct LowerPart : torch::nn::Module {
  explicit LowerPart(const Whole& whole) {
    first = register_parameter(
        "first", whole.first.detach().flatten().slice(0, 0, kCut).clone().unsqueeze(0));
  }
  at::Tensor first;
};
struct UpperPart : torch::nn::Module {
  explicit UpperPart(const Whole& whole) {
    first = register_parameter("first",
                               whole.first.detach().flatten().slice(0, kCut).clone().unsqueeze(0));
    bias = register_parameter("bias", whole.bias.detach().clone());
    second = register_parameter("second", whole.second.detach().clone());
  }
  at::Tensor first, bias, second;
};

at::Tensor LossOf(const at::Tensor& first, const at::Tensor& bias, const at::Tensor& second,
                  int step) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  at::Tensor y = (torch::randn({4, kRows}).matmul(first.view({kRows, kColumns})) + bias).tanh();
  if (step != 1) y = y.matmul(second);
  return y.square().sum();
}

class StepExchangeTest : public TrainingTest {
 protected:
  ManagedModel& ManageWhole() {
    whole_ = std::make_unique<Whole>();
    Open(SmallOptions());
    model_ = Manage(*whole_);
    return *model_;
  }
  void Backward(int step) {
    whole_->zero_grad();
    LossOf(whole_->first, whole_->bias, whole_->second, step).backward();
  }

  std::unique_ptr<Whole> whole_;
  ManagedModel* model_ = nullptr;
  NotedExchange exchange_;
};

TEST_F(StepExchangeTest, GetsTheBlocksOfEachTensorOnceAStep) {
  ManagedModel& model = ManageWhole();
  for (const int step : {0, 1}) {
    Backward(step);
    std::vector<double> first;
    const at::Tensor gradient = whole_->first.grad().clone();
    AppendBlockSquares(ElementType::kFp32, gradient.const_data_ptr(), gradient.numel(), first);
    ASSERT_OK_AND_ASSIGN(const StepResult result, model.Step({.exchange = &exchange_}));
    ASSERT_EQ(exchange_.owns.size(), step + 1);
    ASSERT_OK_AND_ASSIGN(const SquaresByTensor own, exchange_.owns.back());
    ASSERT_EQ(own.size(), 3);
    EXPECT_EQ(own[0], first);
    EXPECT_EQ(own[1].size(), 1);
    EXPECT_EQ(own[2].size(), step == 1 ? 0 : 1);  // It has no gradient then.
    std::vector<double> all;
    for (const std::vector<double>& one : own) all.insert(all.end(), one.begin(), one.end());
    EXPECT_EQ(result.grad_norm, NormOf(all));
  }
  EXPECT_TRUE(exchange_.trusts.empty());
}

TEST_F(StepExchangeTest, TheNormOfAllIsTheStepsNorm) {
  ManagedModel& model = ManageWhole();
  Backward(0);
  exchange_.answer = 50.0;
  ASSERT_OK_AND_ASSIGN(const StepResult result,
                       model.Step({.max_grad_norm = 1, .loss_scale = 4, .exchange = &exchange_}));
  EXPECT_EQ(result.grad_norm, 12.5);
  EXPECT_EQ(result.clip_coefficient, ClipCoefficient(12.5, 1));
}

// What another process cannot do, this one does not do either.
TEST_F(StepExchangeTest, ARefusalOfAllChangesNothing) {
  ManagedModel& model = ManageWhole();
  const std::vector<float> before = ReadAll(model, "first");
  Backward(0);
  exchange_.answer = absl::AbortedError("rank 3: gone");
  EXPECT_THAT(model.Step({.exchange = &exchange_}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 3")));
  exchange_.answer = absl::OutOfRangeError("rank 2: the gradient of x holds a NaN");
  EXPECT_THAT(model.Step({.exchange = &exchange_}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 2")));
  ASSERT_OK_AND_ASSIGN(const StepResult skipped,
                       model.Step({.skip_non_finite = true, .exchange = &exchange_}));
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(model.step(), 0);
  EXPECT_EQ(ReadAll(model, "first"), before);
  // The gradient is still there.
  exchange_.answer.reset();
  ASSERT_OK_AND_ASSIGN(const StepResult taken, model.Step({.exchange = &exchange_}));
  EXPECT_EQ(taken.step, 1);
}

// The others wait in the exchange, whatever the cause is.
TEST_F(StepExchangeTest, EveryRefusalOfThisProcessIsTold) {
  ManagedModel& model = ManageWhole();
  const auto refused = [&](const StepOptions& options, absl::StatusCode code,
                           const std::string& text) {
    exchange_.owns.clear();
    StepOptions with = options;
    with.exchange = &exchange_;
    EXPECT_THAT(model.Step(with), StatusIs(code, HasSubstr(text)));
    ASSERT_EQ(exchange_.owns.size(), 1) << text;
    EXPECT_THAT(exchange_.owns[0].status().message(), HasSubstr(text));
  };
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  Backward(0);
  refused({.loss_scale = 0.5}, absl::StatusCode::kInvalidArgument, "loss scale");
  refused({.learning_rate = INFINITY}, absl::StatusCode::kInvalidArgument, "learning rate");
  {
    ASSERT_OK_AND_ASSIGN(const ScopedFetch fetch, model.Fetch(whole_->bias, FetchAccess::kRead));
    refused({}, kPrecondition, "bias");
  }
  {
    const torch::NoGradGuard no_grad;
    whole_->second.grad().fill_(NAN);
  }
  refused({}, kPrecondition, "second holds a NaN");
  EXPECT_EQ(exchange_.owns[0].status().code(), absl::StatusCode::kOutOfRange);
  whole_->zero_grad();
  // Not even an error of the session hides it, nor that it is closed.
  session_->session().Latch(absl::DataLossError("a chunk is gone"));
  refused({}, absl::StatusCode::kDataLoss, "a chunk is gone");
  ASSERT_OK(session_->Close());
  refused({}, kPrecondition, "closed");
}

TEST_F(StepExchangeTest, AProcessWithoutAGradientTakesTheStepsOfTheOthers) {
  ManagedModel& model = ManageWhole();
  ASSERT_OK_AND_ASSIGN(const StepResult none, model.Step({.exchange = &exchange_}));
  EXPECT_EQ(none.step, 0);
  ASSERT_EQ(exchange_.owns.size(), 1);
  ASSERT_OK(exchange_.owns[0]);
  EXPECT_EQ(*exchange_.owns[0], SquaresByTensor(3));
  const std::vector<float> before = ReadAll(model, "first");
  exchange_.answer = 2.0;
  ASSERT_OK_AND_ASSIGN(const StepResult theirs, model.Step({.exchange = &exchange_}));
  EXPECT_EQ(theirs.step, 1);
  EXPECT_EQ(theirs.grad_norm, 2.0);
  EXPECT_EQ(model.step(), 1);
  EXPECT_EQ(*model.TensorStep("first"), 0);
  EXPECT_EQ(ReadAll(model, "first"), before);
  // Then one of its own.
  exchange_.answer.reset();
  Backward(0);
  ASSERT_OK_AND_ASSIGN(const StepResult own, model.Step({.exchange = &exchange_}));
  EXPECT_EQ(own.step, 2);
  EXPECT_EQ(*model.TensorStep("first"), 1);
}

// Answers for a part of a model with what the steps of the whole one gave.
class PartExchange final : public StepExchange {
 public:
  // Tensor i of the part is of tensor `tensors[i]`, from block `blocks[i]` on.
  PartExchange(const NotedExchange& whole, std::vector<size_t> tensors, std::vector<size_t> blocks)
      : whole_(whole), tensors_(std::move(tensors)), blocks_(std::move(blocks)) {}

  absl::StatusOr<std::optional<double>> AgreeOnNorm(
      const absl::StatusOr<SquaresByTensor>& own) override {
    EXPECT_OK(own);
    const SquaresByTensor& all = *whole_.owns[step_++];
    for (size_t i = 0; i < own->size(); ++i) ExpectPart((*own)[i], all[tensors_[i]], blocks_[i]);
    return NoExchange().AgreeOnNorm(all);
  }
  absl::Status CompleteTrustSquares(absl::Span<TrustSquares> squares) override {
    for (size_t i = 0; i < squares.size(); ++i) {
      const TrustSquares& all = whole_.trusts[step_ - 1][tensors_[i]];
      ExpectPart(squares[i].param, all.param, blocks_[i]);
      ExpectPart(squares[i].direction, all.direction, blocks_[i]);
      squares[i] = all;
    }
    return absl::OkStatus();
  }

 private:
  static void ExpectPart(const std::vector<double>& part, const std::vector<double>& all,
                         size_t first) {
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], all[first + i]);
  }

  const NotedExchange& whole_;
  const std::vector<size_t> tensors_, blocks_;
  size_t step_ = 0;
};

class PartsTest : public StepExchangeTest, public ::testing::WithParamInterface<OptimizerKind> {};

// A matrix is cut at a block, so that its parts' blocks are those of the whole.
TEST_P(PartsTest, OfAModelCutAtABlockHaveTheBitsOfTheWhole) {
  constexpr int kSteps = 4;
  const OptimizerSpec spec = {.kind = GetParam(), .learning_rate = 0.01, .weight_decay = 0.1};
  Open(SmallOptions());
  Whole whole;
  const Whole copy;
  LowerPart lower(copy);
  UpperPart upper(copy);
  ManagedModel* const model = Manage(whole, spec);
  ManagedModel* const lower_model = Manage(lower, spec, "lower");
  ManagedModel* const upper_model = Manage(upper, spec, "upper");
  PartExchange of_lower(exchange_, {0}, {0});
  PartExchange of_upper(exchange_, {0, 1, 2}, {kCut / kNormBlockElements, 0, 0});
  for (int step = 0; step < kSteps; ++step) {
    whole.zero_grad();
    LossOf(whole.first, whole.bias, whole.second, step).backward();
    ASSERT_OK_AND_ASSIGN(const StepResult result,
                         model->Step({.max_grad_norm = 0.5, .exchange = &exchange_}));
    EXPECT_LT(result.clip_coefficient, 1);
    lower.zero_grad();
    upper.zero_grad();
    LossOf(torch::cat({lower.first, upper.first}, 1), upper.bias, upper.second, step).backward();
    for (const auto& [part, exchange] :
         {std::pair(lower_model, &of_lower), std::pair(upper_model, &of_upper)}) {
      ASSERT_OK_AND_ASSIGN(const StepResult of_part,
                           part->Step({.max_grad_norm = 0.5, .exchange = exchange}));
      EXPECT_EQ(of_part.grad_norm, result.grad_norm);
    }
  }
  std::vector<float> first = ReadAll(*lower_model, "first");
  const std::vector<float> rest = ReadAll(*upper_model, "first");
  first.insert(first.end(), rest.begin(), rest.end());
  EXPECT_EQ(first, ReadAll(*model, "first"));
  EXPECT_EQ(ReadAll(*upper_model, "bias"), ReadAll(*model, "bias"));
  EXPECT_EQ(ReadAll(*upper_model, "second"), ReadAll(*model, "second"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, PartsTest,
                         ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kLamb,
                                           OptimizerKind::kLars));

TEST_F(StepExchangeTest, LayerWiseOptimizersAskBehindTheNormAlsoWithoutAGradient) {
  Open(SmallOptions());
  Whole whole;
  ManagedModel* const model = Manage(whole, {.kind = OptimizerKind::kLamb});
  exchange_.answer = 2.0;
  ASSERT_OK(model->Step({.exchange = &exchange_}));
  ASSERT_EQ(exchange_.trusts.size(), 1);
  EXPECT_EQ(exchange_.trusts[0].size(), 3);
  // An error there is the step's.
  exchange_.trust_status = absl::AbortedError("rank 1: gone");
  LossOf(whole.first, whole.bias, whole.second, 0).backward();
  const std::vector<float> before = ReadAll(*model, "first");
  EXPECT_THAT(model->Step({.exchange = &exchange_}), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(ReadAll(*model, "first"), before);
  // This process is no longer at the step of the others, and tells them so at the next.
  exchange_.owns.clear();
  EXPECT_THAT(model->Step({.exchange = &exchange_}), StatusIs(absl::StatusCode::kAborted));
  ASSERT_EQ(exchange_.owns.size(), 1);
  EXPECT_FALSE(exchange_.owns[0].ok());
}

}  // namespace
}  // namespace gemini::client::hooks
