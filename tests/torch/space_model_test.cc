// SPDX-License-Identifier: Apache-2.0
// What a model is after a step or a write that was refused or failed. The space's chunk store is at
// hand here, to make a commit fail.
#include "client/torch/space_model.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/adamw.h"
#include "client/session.h"
#include "client/torch/module_tensors.h"
#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/embedded_server.h"
#include "tests/status_matchers.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace gemini::client::hooks {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kChunkBytes = 64 * kKiB;

// The matrices fill a chunk each, the vectors share the last one.
struct Net : torch::nn::Module {
  Net() {
    first = register_parameter("first", torch::randn({128, 128}));
    second = register_parameter("second", torch::randn({128, 128}));
    left = register_parameter("left", torch::randn({16}));
    right = register_parameter("right", torch::randn({16}));
  }
  // The gradient of x is 2x.
  void Backward() {
    (first * first).sum().backward();
    (second * second).sum().backward();
    ((left * left).sum() + (right * right).sum()).backward();
  }
  at::Tensor first, second, left, right;
};

class SpaceModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = 8 * kMiB;
    server_options.capacity_bytes[Tier::kHost] = 32 * kMiB;
    ASSERT_OK_AND_ASSIGN(server_, server::EmbeddedServer::Start(server_options));
    ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
    SessionOptions options;
    options.want_bytes = options.floor_bytes = server_options.capacity_bytes;
    options.chunk_bytes = kChunkBytes;
    options.label = "test";
    ASSERT_OK_AND_ASSIGN(session_, Session::Open(std::move(socket), options));
    ASSERT_OK_AND_ASSIGN(hook_, OperatorHook::Install(*session_));

    torch::manual_seed(1);
    net_ = std::make_unique<Net>();
    ASSERT_OK_AND_ASSIGN(std::vector<ModuleTensor> tensors, CollectModuleTensors(*net_, {}));
    std::vector<TensorSpec> specs;
    for (const ModuleTensor& tensor : tensors) {
      specs.push_back({tensor.names.front(),
                       tensor.tensor.numel() * static_cast<int64_t>(sizeof(float)), tensor.group});
    }
    ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(specs, kChunkBytes));
    ASSERT_EQ(layout.num_bundles(), 3);
    SpaceOptions space;
    space.name = "model";
    space.num_bundles = layout.num_bundles();
    space.host_slots = 4 * layout.num_bundles() + 8;
    ASSERT_OK_AND_ASSIGN(store_, session_->OpenSpace(space));
    ASSERT_OK_AND_ASSIGN(
        model_, SpaceModel::Make(ModelTensors::Make(std::move(tensors), layout, *store_,
                                                    session_->residency(), 2),
                                 OptimizerSpec{}, /*max_open_chunks=*/4, *session_, *hook_));
  }
  ~SpaceModelTest() override {
    model_.reset();
    hook_.reset();
    if (session_ != nullptr) {
      EXPECT_OK(session_->Close());
    }
  }

  std::vector<float> ReadAll(const std::string& name, ChunkKind kind = ChunkKind::kParam) {
    std::vector<float> values;
    EXPECT_OK(model_->Read(name, kind, [&](int64_t offset, absl::Span<const std::byte> bytes) {
      values.resize((offset + bytes.size()) / sizeof(float));
      std::memcpy(reinterpret_cast<std::byte*>(values.data()) + offset, bytes.data(), bytes.size());
      return absl::OkStatus();
    }));
    return values;
  }
  absl::Status Fill(const std::string& name, ChunkKind kind, float value) {
    return model_->Write(name, kind, [&](int64_t, absl::Span<std::byte> bytes) {
      auto* const values = reinterpret_cast<float*>(bytes.data());
      std::fill_n(values, bytes.size() / sizeof(float), value);
      return absl::OkStatus();
    });
  }
  static absl::Status Ignore(int64_t, absl::Span<const std::byte>) { return absl::OkStatus(); }

  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<OperatorHook> hook_;
  std::unique_ptr<Net> net_;
  ChunkStore* store_ = nullptr;
  std::unique_ptr<SpaceModel> model_;
};

TEST_F(SpaceModelTest, ALiveFetchRefusesTheStepWithNothingCommittedOrLatched) {
  net_->Backward();
  for (const at::Tensor& tensor : {net_->second, net_->right, net_->second.grad()}) {
    const std::vector<float> before = ReadAll("first");
    ASSERT_OK_AND_ASSIGN(const ScopedFetch fetched, model_->Fetch(tensor, FetchAccess::kRead));
    EXPECT_THAT(model_->Step({}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ScopedFetch")));
    EXPECT_OK(session_->status());
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(store_->CommittedStep(BundleId(i)), 0);
    EXPECT_EQ(ReadAll("first"), before);
  }
  ASSERT_OK_AND_ASSIGN(const StepResult result, model_->Step({}));
  EXPECT_EQ(result.step, 1);
}

TEST_F(SpaceModelTest, ReadAfterAnUpdateThatFailedHalfwayIsDataLoss) {
  net_->Backward();
  ASSERT_OK(store_->Commit(BundleId(2), 100, {}));  // So that step 1 cannot be committed there.
  EXPECT_THAT(model_->Step({}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(store_->CommittedStep(BundleId(0)), 1);
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* name : {"first", "second", "right"}) {
    EXPECT_THAT(model_->Read(name, ChunkKind::kParam, &Ignore),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checkpoint")));
    EXPECT_THAT(model_->TensorStep(name), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_F(SpaceModelTest, AnUpdateThatFailsBeforeItsFirstCommitLatchesNothing) {
  net_->Backward();
  const std::vector<float> before = ReadAll("first");
  ASSERT_OK(store_->Commit(BundleId(0), 100, {}));
  EXPECT_THAT(model_->Step({}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(session_->status());
  EXPECT_EQ(store_->CommittedStep(BundleId(1)), 0);
  EXPECT_EQ(ReadAll("first"), before);
}

TEST_F(SpaceModelTest, AMomentWrittenWithoutTheOtherMeetsZeros) {
  std::vector<float> param = ReadAll("first");
  const OptimizerSpec spec;
  AdamWSettings settings;
  settings.learning_rate = spec.learning_rate;
  settings.weight_decay = spec.weight_decay;
  std::vector<float> grad = param;
  for (float& g : grad) g *= 2;
  std::vector<float> exp_avg(param.size(), 0.5f);
  std::vector<float> exp_avg_sq(param.size(), 0.0f);
  AdamWUpdate(settings,
              {param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), param.data(),
               exp_avg.data(), exp_avg_sq.data()},
              static_cast<int64_t>(param.size()));

  ASSERT_OK(Fill("first", ChunkKind::kExpAvg, 0.5f));
  net_->Backward();
  ASSERT_OK(model_->Step({}));
  EXPECT_EQ(ReadAll("first"), param);
  EXPECT_EQ(ReadAll("first", ChunkKind::kExpAvg), exp_avg);
  EXPECT_EQ(ReadAll("first", ChunkKind::kExpAvgSq), exp_avg_sq);
}

TEST_F(SpaceModelTest, ARefusedWriteLeavesTheTensorsOfItsChunkAsTheyWere) {
  const std::vector<float> before = ReadAll("right");
  {
    ASSERT_OK_AND_ASSIGN(const ScopedFetch fetched, model_->Fetch(net_->left, FetchAccess::kRead));
    EXPECT_THAT(Fill("right", ChunkKind::kParam, 7),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_EQ(ReadAll("right"), before);
  EXPECT_EQ(net_->right.detach()[0].item<float>(), before[0]);
  EXPECT_TRUE(net_->left.isfinite().all().item<bool>());
  EXPECT_OK(session_->status());
  ASSERT_OK(Fill("right", ChunkKind::kParam, 7));
  EXPECT_TRUE(net_->right.eq(7).all().item<bool>());
}

TEST_F(SpaceModelTest, AParameterTransposedInPlaceIsReported) {
  net_->Backward();
  {
    const at::NoGradGuard no_grad;
    net_->second.t_();
  }
  EXPECT_THAT(model_->Step({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("second")));
  EXPECT_EQ(model_->step(), 0);
}

TEST_F(SpaceModelTest, ReadGivesTheGradientAndZerosWhereThereIsNone) {
  EXPECT_THAT(ReadAll("left", ChunkKind::kGrad), Each(0.0f));
  net_->Backward();
  std::vector<float> twice = ReadAll("left");
  for (float& value : twice) value *= 2;
  EXPECT_EQ(ReadAll("left", ChunkKind::kGrad), twice);
  {
    const at::NoGradGuard no_grad;
    net_->left.grad().fill_(3);  // On DEVICE only, until it is read.
  }
  EXPECT_THAT(ReadAll("left", ChunkKind::kGrad), Each(3.0f));
  net_->left.mutable_grad() = torch::full({16}, 4.0);  // The user's own, in no chunk yet.
  EXPECT_THAT(ReadAll("left", ChunkKind::kGrad), Each(4.0f));
  net_->zero_grad();
  EXPECT_THAT(ReadAll("left", ChunkKind::kGrad), Each(0.0f));
  EXPECT_EQ(ReadAll("left", ChunkKind::kGrad).size(), 16);
}

}  // namespace
}  // namespace gemini::client::hooks
