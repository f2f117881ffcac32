// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/training_session.h"

#include <cmath>

#include "client/torch/model/build_scope.h"
#include "tests/client/torch/training_fixture.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/utils/clip_grad.h"

namespace gemini::client::hooks {
namespace {

using ::testing::HasSubstr;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(64, 200));
    second = register_module("second", torch::nn::Linear(200, 10));
  }
  at::Tensor Forward(const at::Tensor& x) { return second->forward(first->forward(x).relu()); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

at::Tensor Loss(Net& net, const at::Tensor& x) { return net.Forward(x).square().mean(); }

using TrainingSessionTest = TrainingTest;

TEST_F(TrainingSessionTest, ManagedParametersKeepTheirValuesAndMoveThroughAStep) {
  Open(SmallOptions());
  torch::manual_seed(1);
  Net net;
  const at::Tensor before = net.first->weight.detach().clone();
  ManagedModel* const model = Manage(net);
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(net.first->weight.equal(before));
  const at::Tensor x = torch::randn({4, 64});
  Loss(net, x).backward();
  ASSERT_TRUE(net.first->weight.grad().defined());
  ASSERT_OK_AND_ASSIGN(const StepResult result, model->Step({}));
  EXPECT_EQ(result.step, 1);
  EXPECT_GT(result.grad_norm, 0);
  EXPECT_FALSE(net.first->weight.equal(before));
  EXPECT_OK(session_->status());
}

// A gradient that leaves DEVICE is kept there until the next one leaves, or the update comes.
TEST_F(TrainingSessionTest, AStepThatIsGivenUpLeavesNoMemoryTakenAndNoNumberChanged) {
  Open(SmallOptions());
  torch::manual_seed(1);
  Net net, given_up;
  given_up.first->weight.data().copy_(net.first->weight.data());
  given_up.first->bias.data().copy_(net.first->bias.data());
  given_up.second->weight.data().copy_(net.second->weight.data());
  given_up.second->bias.data().copy_(net.second->bias.data());
  ManagedModel* const model = Manage(net);
  ManagedModel* const other = Manage(given_up, {}, "given_up");
  ASSERT_TRUE(model != nullptr && other != nullptr);
  const at::Tensor x = torch::randn({4, 64});
  const DeviceBudget& budget = session_->session().device_budget();
  const int64_t before = budget.non_model_bytes();
  Loss(given_up, 1000 * x).backward();
  given_up.zero_grad();
  EXPECT_GT(budget.non_model_bytes(), before);
  session_->ForgetGradients();
  EXPECT_EQ(budget.non_model_bytes(), before);
  Loss(net, x).backward();
  Loss(given_up, x).backward();
  ASSERT_OK_AND_ASSIGN(const StepResult result, model->Step({}));
  ASSERT_OK_AND_ASSIGN(const StepResult of_other, other->Step({}));
  EXPECT_EQ(of_other.grad_norm, result.grad_norm);
  EXPECT_TRUE(given_up.first->weight.equal(net.first->weight));
}

TEST_F(TrainingSessionTest, ASecondSessionInTheProcessIsRefused) {
  Open(SmallOptions());
  ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
  EXPECT_THAT(
      TrainingSession::Open(std::move(socket), SmallOptions()),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a training session is open")));
}

TEST_F(TrainingSessionTest, NanGradientNamesTheTensorAndCommitsNothing) {
  Open(SmallOptions());
  Net net;
  ManagedModel* const model = Manage(net);
  Loss(net, torch::randn({4, 64})).backward();
  const std::vector<float> before = ReadAll(*model, "second.bias");
  {
    torch::NoGradGuard no_grad;
    net.second->bias.grad().fill_(NAN);
  }
  EXPECT_THAT(model->Step({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("second.bias")));
  EXPECT_EQ(ReadAll(*model, "second.bias"), before);
  EXPECT_EQ(model->step(), 0);
  // Nothing is latched: with a good gradient the next step goes.
  net.zero_grad();
  Loss(net, torch::randn({4, 64})).backward();
  EXPECT_OK(model->Step({}));
}

TEST_F(TrainingSessionTest, ReplacedStorageIsReportedWithTheParametersName) {
  Open(SmallOptions());
  Net net;
  ManagedModel* const model = Manage(net);
  net.second->weight.set_data(torch::zeros({10, 200}));
  EXPECT_THAT(model->Step({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("second.weight")));
}

TEST_F(TrainingSessionTest, ModuleConvertedToDoubleIsReported) {
  Open(SmallOptions());
  Net net;
  ManagedModel* const model = Manage(net);
  net.to(torch::kDouble);
  EXPECT_THAT(model->Step({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("first.weight")));
}

TEST_F(TrainingSessionTest, OtherDtypesAreRefusedByName) {
  Open(SmallOptions());
  Net net;
  net.second->to(torch::kDouble);
  EXPECT_THAT(session_->Manage(net, {}, {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("second.weight is Double")));
}

TEST_F(TrainingSessionTest, ModelThatDoesNotFitIsRefusedWithTheNumbers) {
  TrainingOptions options = SmallOptions();
  options.host_memory = 1 * kMiB;
  Open(options);
  torch::nn::Linear large(1024, 1024);
  EXPECT_THAT(session_->Manage(*large, {}, {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("MiB")));
  EXPECT_TRUE(large->weight.sum().isfinite().item<bool>());  // Not managed, not harmed.
}

TEST_F(TrainingSessionTest, TensorsThatOutliveTheSessionRaise) {
  Open(SmallOptions());
  Net net;
  ManagedModel* const model = Manage(net);
  Loss(net, torch::randn({4, 64})).backward();
  ASSERT_OK(model->Step({}));
  ASSERT_OK(session_->Close());
  for (const at::Tensor& tensor : {net.first->weight, net.first->weight.grad()}) {
    try {
      tensor.sum();
      ADD_FAILURE() << "an operator read a tensor of a closed session";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the session is closed"));
    }
  }
}

TEST_F(TrainingSessionTest, AModelOfAClosedSessionSaysSo) {
  Open(SmallOptions());
  Net net;
  ManagedModel* const model = Manage(net);
  Loss(net, torch::randn({4, 64})).backward();
  ASSERT_OK(model->Step({}));
  const std::string name = model->tensors()[0].name;
  ASSERT_OK(session_->Close());
  EXPECT_EQ(model->step(), 1);
  EXPECT_EQ(model->tensors()[0].name, name);
  const auto is_closed =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("session is closed"));
  EXPECT_THAT(model->Step({}), is_closed);
  EXPECT_THAT(model->TensorStep(name), is_closed);
  EXPECT_THAT(model->SetStep(2), is_closed);
  EXPECT_THAT(model->SetTensorStep(name, 2), is_closed);
  EXPECT_THAT(model->Read(name, ChunkKind::kParam,
                          [](int64_t, absl::Span<const std::byte>) { return absl::OkStatus(); }),
              is_closed);
  EXPECT_THAT(model->Write(name, ChunkKind::kParam,
                           [](int64_t, absl::Span<std::byte>) { return absl::OkStatus(); }),
              is_closed);
  EXPECT_THAT(model->Fetch(net.first->weight, FetchAccess::kRead), is_closed);
}

TEST_F(TrainingSessionTest, ARangeOfATensorIsReadAlone) {
  Open(SmallOptions());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(type);
    torch::nn::Module module;
    module.register_parameter("before", torch::ones({24}, type));
    // It spans chunks.
    at::Tensor table = module.register_parameter("table", torch::randn({100, 700}, type));
    ManagedModel* const model = Manage(module, {}, {.space_name = c10::toString(type)});
    table.sum().backward();
    ASSERT_OK(model->Step({}));
    constexpr int64_t kTableBytes = 70'000 * sizeof(float);
    for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg}) {
      const std::vector<float> all = ReadAll(*model, "table", kind);
      ASSERT_EQ(all.size(), 70'000);
      for (const ByteRange range :
           {ByteRange{0, 4}, ByteRange{60 * kKiB, 8 * kKiB}, ByteRange{64 * kKiB + 4, 70'000},
            ByteRange{3 * 64 * kKiB}, ByteRange{kTableBytes - 4, 100}, ByteRange{kTableBytes, 4},
            ByteRange{8, 0}}) {
        SCOPED_TRACE(absl::StrCat(range.offset_bytes, " + ", range.size_bytes));
        std::vector<float> part;
        EXPECT_OK(model->ReadRange(
            "table", kind, range, [&](int64_t offset, absl::Span<const std::byte> bytes) {
              EXPECT_FALSE(bytes.empty());
              EXPECT_EQ(offset, range.offset_bytes + std::ssize(part) * 4);
              const auto* const values = reinterpret_cast<const float*>(bytes.data());
              part.insert(part.end(), values, values + bytes.size() / sizeof(float));
              return absl::OkStatus();
            }));
        const int64_t first = range.offset_bytes / 4;
        const int64_t end = std::min(range.end_bytes(), kTableBytes) / 4;
        EXPECT_TRUE(part == std::vector<float>(all.begin() + first, all.begin() + end));
      }
    }
  }
}

TEST_F(TrainingSessionTest, ASessionOpensAfterAnotherClosed) {
  Open(SmallOptions());
  {
    Net net;
    Manage(net);
  }
  ASSERT_OK(session_->Close());
  session_.reset();
  ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
  ASSERT_OK_AND_ASSIGN(session_, TrainingSession::Open(std::move(socket), SmallOptions()));
  Net net;
  ManagedModel* const model = Manage(net);
  Loss(net, torch::randn({4, 64})).backward();
  EXPECT_OK(model->Step({}));
}

TEST_F(TrainingSessionTest, AFetchThatOutlivesItsSessionTouchesNothingOfTheNext) {
  Open(SmallOptions());
  Net net;
  ASSERT_OK_AND_ASSIGN(ScopedFetch old,
                       Manage(net)->Fetch(net.first->weight, FetchAccess::kReadWrite));
  EXPECT_THAT(session_->Close(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("first.weight")));
  EXPECT_EQ(net.first->weight.data_ptr(), old.data());  // Still open.
  session_.reset();
  ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
  ASSERT_OK_AND_ASSIGN(session_, TrainingSession::Open(std::move(socket), SmallOptions()));
  Net other;
  ASSERT_OK_AND_ASSIGN(ScopedFetch fetched,
                       Manage(other)->Fetch(other.first->weight, FetchAccess::kRead));
  old.Release();
  EvictAll();
  EXPECT_GT(session_->session().device_budget().used_bytes(),
            session_->session().device_budget().non_model_bytes());
  EXPECT_EQ(other.first->weight.data_ptr(), fetched.data());
  fetched.Release();
  EXPECT_OK(session_->Close());
}

TEST_F(TrainingSessionTest, AGradientHookThatTheUserKeepsDoesNothingAfterTheSession) {
  struct Wrapper : torch::autograd::PostAccumulateGradHook {
    void operator()(const at::Tensor& parameter) override { (*inner)(parameter); }
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> inner;
  };
  Open(SmallOptions());
  Net net;
  ASSERT_NE(Manage(net), nullptr);
  auto wrapper = std::make_unique<Wrapper>();
  wrapper->inner = std::move(torch::autograd::impl::post_acc_grad_hooks(net.first->bias));
  Wrapper& hook = *wrapper;
  torch::autograd::impl::set_post_acc_grad_hooks(net.first->bias, std::move(wrapper));
  session_.reset();
  net.first->bias.mutable_grad() = torch::ones({200});
  hook(net.first->bias);
  EXPECT_EQ(net.first->bias.grad().sum().item<float>(), 200);
}

TEST_F(TrainingSessionTest, AModuleMadeInABuildScopeIsFilledByWrite) {
  torch::manual_seed(3);
  Net plain;
  std::unique_ptr<Net> net;
  {
    const BuildScope scope;
    net = std::make_unique<Net>();
  }
  ASSERT_TRUE(net->first->weight.is_meta());
  Open(SmallOptions());
  ManagedModel* const model = Manage(*net);
  ASSERT_NE(model, nullptr);
  ASSERT_TRUE(net->first->weight.is_cpu());
  for (const auto& item : plain.named_parameters()) {
    ASSERT_OK(model->Write(
        item.key(), ChunkKind::kParam, [&](int64_t offset, absl::Span<std::byte> bytes) {
          std::memcpy(bytes.data(), static_cast<const std::byte*>(item.value().data_ptr()) + offset,
                      bytes.size());
          return absl::OkStatus();
        }));
  }
  const at::Tensor x = torch::randn({4, 64});
  const at::Tensor loss = Loss(*net, x);
  EXPECT_TRUE(loss.equal(Loss(plain, x)));
  loss.backward();
  EXPECT_OK(model->Step({}));
}

TEST_F(TrainingSessionTest, ForwardBeforeATensorIsWrittenLatchesItsName) {
  std::unique_ptr<Net> net;
  {
    const BuildScope scope;
    net = std::make_unique<Net>();
  }
  Open(SmallOptions());
  ManagedModel* const model = Manage(*net);
  const at::Tensor out = net->Forward(torch::randn({4, 64}));
  EXPECT_TRUE(out.isnan().all().item<bool>());
  EXPECT_THAT(model->Step({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("first.")));
}

TEST_F(TrainingSessionTest, MomentsAndStepsComeBackThroughReadAndWrite) {
  Open(SmallOptions());
  torch::manual_seed(5);
  Net net;
  Net twin;
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < net.parameters().size(); ++i) {
      twin.parameters()[i].copy_(net.parameters()[i]);
    }
  }
  ManagedModel* const model = Manage(net);
  ManagedModel* const resumed = Manage(twin, {}, "twin");
  const at::Tensor x = torch::randn({4, 64});
  Loss(net, x).backward();
  ASSERT_OK(model->Step({}));
  for (const ManagedTensorInfo& info : model->tensors()) {
    for (ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
      const std::vector<float> values = ReadAll(*model, info.name, kind);
      ASSERT_OK(resumed->Write(info.name, kind, [&](int64_t offset, absl::Span<std::byte> bytes) {
        std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(values.data()) + offset,
                    bytes.size());
        return absl::OkStatus();
      }));
    }
    ASSERT_OK(resumed->SetTensorStep(info.name, 1));
  }
  ASSERT_OK(resumed->SetStep(1));
  for (auto [module, managed] : {std::pair(&net, model), std::pair(&twin, resumed)}) {
    module->zero_grad();
    Loss(*module, x).backward();
    ASSERT_OK_AND_ASSIGN(const StepResult result, managed->Step({}));
    EXPECT_EQ(result.step, 2);
  }
  for (const ManagedTensorInfo& info : model->tensors()) {
    EXPECT_EQ(ReadAll(*model, info.name), ReadAll(*resumed, info.name)) << info.name;
  }
}

TEST_F(TrainingSessionTest, StepCountsThatNoCommitWordHoldsAreRefusedAndTheLastOneIsTaken) {
  // A commit word has 40 bits for the step, and one step is to follow.
  constexpr int64_t kMost = (int64_t{1} << 40) - 2;
  Open(SmallOptions());
  Net net;
  ManagedModel* const model = Manage(net);
  const std::string name = model->tensors()[0].name;
  const auto is_refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1099511627774"));
  EXPECT_THAT(model->SetStep(kMost + 1), is_refused);
  EXPECT_THAT(model->SetTensorStep(name, kMost + 1), is_refused);
  EXPECT_THAT(model->SetTensorStep(name, -1), is_refused);
  EXPECT_EQ(model->step(), 0);
  EXPECT_THAT(model->TensorStep(name), IsOkAndHolds(0));

  ASSERT_OK(model->SetStep(kMost));
  ASSERT_OK(model->SetTensorStep(name, kMost));
  EXPECT_THAT(model->SetStep(kMost - 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot go back")));
  const at::Tensor x = torch::randn({4, 64});
  Loss(net, x).backward();
  ASSERT_OK(model->Step({.overlap_update = false}));
  EXPECT_EQ(model->step(), kMost + 1);
  // There is none behind the last.
  EXPECT_THAT(model->Step({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step")));
  EXPECT_EQ(model->step(), kMost + 1);
}

// No chunk of its is on NVMe, so nothing but the step looks for the server.
TEST_F(TrainingSessionTest, AStepBehindTheServersDeathIsUnavailableAndSaysWhatToDo) {
  Open(SmallOptions());
  Net net;
  ManagedModel* const model = Manage(net);
  const at::Tensor x = torch::randn({4, 64});
  Loss(net, x).backward();
  ASSERT_OK(model->Step({}));
  Loss(net, x).backward();
  server_.reset();
  EXPECT_THAT(model->Step({}), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("resume")));
  EXPECT_EQ(model->step(), 1);
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("resume")));
}

}  // namespace
}  // namespace gemini::client::hooks
