// SPDX-License-Identifier: Apache-2.0
// What a model is after a step or a write that was refused or failed. The space's chunk store is at
// hand here, to make a commit fail.
#include "client/torch/model/space_model.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/kernels/device_kernels_host.h"
#include "client/kernels/update_kernel.h"
#include "client/session/session.h"
#include "client/torch/hook/session_device.h"
#include "client/torch/model/module_tensors.h"
#include "gemini/byte_size.h"
#include "gemini/plan/spare_slots.h"
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

// The CPU, whose operators' allocations are nobody's.
class PlainDevice : public SessionDevice {
 public:
  explicit PlainDevice(Session& session) : kernels_(session.update_team()) {}
  c10::Device device() const override { return c10::Device(c10::DeviceType::CPU); }
  absl::Status Configure(SessionOptions&) override { return absl::OkStatus(); }
  void Begin(std::shared_ptr<Session>, BudgetFollower&) override {}
  void End() override {}
  DeviceKernels& kernels() override { return kernels_; }
  std::byte* NanScratch(int64_t size_bytes) override {
    scratch_.assign(static_cast<size_t>(size_bytes), std::byte{0xff});
    return scratch_.data();
  }

 private:
  DeviceKernelsHost kernels_;
  std::vector<std::byte> scratch_;
};

class SpaceModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = 8 * kMiB;
    server_options.capacity_bytes[Tier::kHost] = 32 * kMiB;
    if (nvme_slots() > 0) {
      // One space more than the fixture's own.
      const int64_t nvme_bytes = 2 * nvme_slots() * kChunkBytes;
      std::string pattern = ::testing::TempDir() + "nvmeXXXXXX";
      ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
      nvme_directory_ = pattern;
      server_options.capacity_bytes[Tier::kNvme] = nvme_bytes;
      server_options.nvme_directories = {{nvme_directory_, nvme_bytes}};
    }
    ASSERT_OK_AND_ASSIGN(server_, server::EmbeddedServer::Start(server_options));
    ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
    SessionOptions options;
    options.want_bytes = options.floor_bytes = server_options.capacity_bytes;
    options.chunk_bytes = kChunkBytes;
    options.label = "test";
    ASSERT_OK_AND_ASSIGN(session_, Session::Open(std::move(socket), options));
    ASSERT_OK_AND_ASSIGN(
        hook_, OperatorHook::Install(*session_, std::make_shared<PlainDevice>(*session_)));

    torch::manual_seed(1);
    net_ = std::make_unique<Net>();
    ASSERT_OK_AND_ASSIGN(std::vector<ModuleTensor> tensors, CollectModuleTensors(*net_, {}));
    MakeModel("model", std::move(tensors), /*host_slots=*/3 * 4 + 8, store_, model_);
    ASSERT_NE(model_, nullptr);
    ASSERT_EQ(store_->num_bundles(), 3);
  }
  void MakeModel(const std::string& name, std::vector<ModuleTensor> tensors, int64_t host_slots,
                 ChunkStore*& store, std::unique_ptr<SpaceModel>& model) {
    std::vector<TensorSpec> specs;
    for (const ModuleTensor& tensor : tensors) {
      specs.push_back({tensor.names.front(),
                       tensor.tensor.numel() * static_cast<int64_t>(sizeof(float)), tensor.group});
    }
    ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(specs, kChunkBytes));
    SpaceOptions space;
    space.name = name;
    space.num_bundles = layout.num_bundles();
    space.host_slots = host_slots;
    space.nvme_slots = nvme_slots();
    space.num_tensors = static_cast<int64_t>(tensors.size());
    ASSERT_OK_AND_ASSIGN(store, session_->OpenSpace(space));
    ASSERT_OK_AND_ASSIGN(
        model, SpaceModel::Make(ModelTensors::Make(std::move(tensors), layout, *store,
                                                   session_->residency(), 2, at::kCPU),
                                OptimizerSpec{}, /*max_open_chunks=*/4, *session_, *hook_));
  }
  virtual int64_t nvme_slots() const { return 0; }
  ~SpaceModelTest() override {
    used_ = true;
    model_.reset();
    hook_.reset();
    if (session_ != nullptr && server_ != nullptr) {
      EXPECT_OK(session_->Close());
    }
    session_.reset();
    server_.reset();
    if (!nvme_directory_.empty()) std::filesystem::remove_all(nvme_directory_);
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
  // Holds the update thread up until somebody waits for `bundle`, or `used_` is set. Returns when
  // it is held.
  void HoldUpdatesUntilWaitedFor(BundleId bundle) {
    used_ = false;
    auto held = std::make_shared<std::latch>(1);
    model_->updates().Later([this, bundle, held] {
      held->count_down();
      // It is given out before its turn then.
      while (!used_ && store_->updates().Take() != bundle) {
        store_->updates().Retry();
        std::this_thread::yield();
      }
      store_->updates().Retry();
    });
    held->wait();
  }
  // What the first update makes of fp32 values whose gradient is twice their own.
  static std::vector<float> FirstUpdate(const std::vector<float>& param) {
    const OptimizerSpec spec;
    UpdateSettings settings;
    settings.learning_rate = spec.learning_rate;
    settings.beta1 = spec.beta1;
    settings.beta2 = spec.beta2;
    settings.epsilon = spec.epsilon;
    settings.weight_decay = spec.weight_decay;
    std::vector<float> gradient = param;
    for (float& value : gradient) value *= 2;
    std::vector<float> updated(param.size()), exp_avg(param.size()), exp_avg_sq(param.size());
    UpdateElements(settings,
                   {.param = param.data(),
                    .grad = gradient.data(),
                    .new_param = updated.data(),
                    .new_exp_avg = exp_avg.data(),
                    .new_exp_avg_sq = exp_avg_sq.data()},
                   static_cast<int64_t>(param.size()));
    return updated;
  }
  static std::vector<float> ToVector(const at::Tensor& tensor) {
    const at::Tensor copy = tensor.detach().clone();
    const float* const data = copy.const_data_ptr<float>();
    return {data, data + copy.numel()};
  }
  static absl::Status Ignore(int64_t, absl::Span<const std::byte>) { return absl::OkStatus(); }

  std::string nvme_directory_;
  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<OperatorHook> hook_;
  std::unique_ptr<Net> net_;
  ChunkStore* store_ = nullptr;
  std::atomic<bool> used_{false};
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

TEST_F(SpaceModelTest, AStepThatABundleRefusesLatchesNothing) {
  net_->Backward();
  const std::vector<float> before = ReadAll("first");
  ASSERT_OK(store_->Commit(BundleId(2), 100, {}));
  EXPECT_THAT(model_->Step({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("at step 100")));
  EXPECT_OK(session_->status());
  EXPECT_EQ(model_->step(), 0);
  EXPECT_EQ(store_->CommittedStep(BundleId(1)), 0);
  EXPECT_EQ(ReadAll("first"), before);
}

TEST_F(SpaceModelTest, PinWaitsForVersion) {
  const std::vector<float> before = ReadAll("second");
  net_->Backward();
  HoldUpdatesUntilWaitedFor(BundleId(1));  // Where `second` is.
  ASSERT_OK_AND_ASSIGN(const StepResult result, model_->Step({}));
  EXPECT_EQ(result.step, 1);
  EXPECT_EQ(model_->step(), 1);
  EXPECT_TRUE(store_->AwaitsCommit(ChunkOf(BundleId(1), ChunkKind::kParam)));
  const std::vector<float> seen = ToVector(net_->second);
  used_ = true;
  EXPECT_EQ(seen, FirstUpdate(before));
  EXPECT_OK(session_->status());
}

TEST_F(SpaceModelTest, ReadWaitsForWhatItReads) {
  const std::vector<float> before = ReadAll("second");
  net_->Backward();
  HoldUpdatesUntilWaitedFor(BundleId(1));
  ASSERT_OK(model_->Step({}));
  const std::vector<float> seen = ReadAll("second");
  const std::vector<float> moment = ReadAll("second", ChunkKind::kExpAvg);
  used_ = true;
  EXPECT_EQ(seen, FirstUpdate(before));
  EXPECT_THAT(moment, ::testing::Contains(::testing::Ne(0.0f)));
}

TEST_F(SpaceModelTest, GradHeldUntilCommit) {
  const std::vector<float> before = ReadAll("second");
  net_->Backward();
  HoldUpdatesUntilWaitedFor(BundleId(1));
  ASSERT_OK(model_->Step({}));
  {
    // On DEVICE it may be written at once; on its way to HOST it waits for the update that reads
    // it.
    const at::NoGradGuard no_grad;
    net_->second.grad().fill_(7);
  }
  session_->residency().MakeRoom(session_->device_budget().budget_bytes());
  used_ = true;
  EXPECT_EQ(ReadAll("second"), FirstUpdate(before));
  EXPECT_THAT(ReadAll("second", ChunkKind::kGrad), Each(7.0f));
}

TEST_F(SpaceModelTest, AStepFinishesTheOneBefore) {
  for (int64_t step = 1; step <= 3; ++step) {
    net_->zero_grad();
    net_->Backward();
    ASSERT_OK_AND_ASSIGN(const StepResult result, model_->Step({}));
    EXPECT_EQ(result.step, step);
    for (int64_t i = 0; i < 3; ++i) EXPECT_GE(store_->CommittedStep(BundleId(i)), step - 1);
    ASSERT_OK_AND_ASSIGN(const int64_t own, model_->TensorStep("left"));
    EXPECT_EQ(own, step);
  }
  StepOptions synchronous;
  synchronous.overlap_update = false;
  ASSERT_OK(model_->Step(synchronous));
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(store_->CommittedStep(BundleId(i)), 4);
}

// Property: whenever a reader looks at the segment, every bundle is at the step of the intent or
// the one before, and the intent is whole: what is pending can be finished.
TEST_F(SpaceModelTest, AtAnyMomentTheSegmentSaysHowToFinishTheStep) {
  const SpaceMemory& memory = store_->memory();
  net_->Backward();
  ASSERT_OK(model_->Step({}));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> looks{0};
  std::atomic<int64_t> looks_in_between{0};
  std::thread reader([&] {
    while (!stop) {
      const std::optional<Intent> intent =
          TryReadIntent(memory.header()->intent, memory.intents(), 4, 3);
      std::vector<int64_t> steps;
      for (int64_t i = 0; i < 3; ++i) {
        const auto word = TryUnpackCommitWord(
            memory.commit_words()[i].load(std::memory_order_acquire), memory.layout().num_records);
        ASSERT_TRUE(word.has_value());
        steps.push_back(word->step);
      }
      // Another one meanwhile: what was seen belongs to no one moment.
      if (!intent || memory.header()->intent.load() >> 1 != static_cast<uint64_t>(intent->step)) {
        continue;
      }
      for (const int64_t step : steps) {
        ASSERT_GE(step, intent->step - 1);
        ASSERT_LE(step, intent->step);
      }
      ASSERT_TRUE(intent->tensors[0].has_gradient);
      ASSERT_EQ(intent->tensors[0].step, intent->step);
      ++looks;
      if (std::ranges::count(steps, intent->step) < 3) ++looks_in_between;
    }
  });
  for (int step = 0; step < 2'000 && (step < 100 || looks_in_between < 100); ++step) {
    net_->zero_grad();
    net_->Backward();
    ASSERT_OK(model_->Step({}));
  }
  stop = true;
  reader.join();
  EXPECT_GE(looks_in_between, 1);
}

TEST_F(SpaceModelTest, AMomentWrittenWithoutTheOtherMeetsZeros) {
  std::vector<float> param = ReadAll("first");
  const OptimizerSpec spec;
  UpdateSettings settings;
  settings.learning_rate = spec.learning_rate;
  settings.weight_decay = spec.weight_decay;
  std::vector<float> grad = param;
  for (float& g : grad) g *= 2;
  std::vector<float> exp_avg(param.size(), 0.5f);
  std::vector<float> exp_avg_sq(param.size(), 0.0f);
  UpdateElements(settings,
                 {.param = param.data(),
                  .grad = grad.data(),
                  .exp_avg = exp_avg.data(),
                  .exp_avg_sq = exp_avg_sq.data(),
                  .new_param = param.data(),
                  .new_exp_avg = exp_avg.data(),
                  .new_exp_avg_sq = exp_avg_sq.data()},
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

// As torch::load does it to a parameter.
TEST_F(SpaceModelTest, AParameterThatGotOtherStorageIsNeitherReadNorWritten) {
  {
    const at::NoGradGuard no_grad;
    net_->second.set_(torch::ones_like(net_->second));
  }
  const auto is_refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("second is no longer"));
  EXPECT_THAT(model_->Read("second", ChunkKind::kParam, Ignore), is_refused);
  // Moments are not the storage's.
  EXPECT_OK(model_->Read("second", ChunkKind::kExpAvg, Ignore));
  EXPECT_THAT(model_->Read("second", ChunkKind::kGrad, Ignore), is_refused);
  EXPECT_THAT(Fill("second", ChunkKind::kParam, 3), is_refused);
  EXPECT_OK(model_->Read("first", ChunkKind::kParam, Ignore));
  EXPECT_OK(Fill("first", ChunkKind::kParam, 3));
  EXPECT_OK(session_->status());
}

TEST_F(SpaceModelTest, OnlyWholeValuesThatTheFormatHasAreReadAndWritten) {
  for (const ChunkKind kind : kAllChunkKinds) {
    SCOPED_TRACE(ChunkKindName(kind));
    const bool is_value = kind == ChunkKind::kParam || kind == ChunkKind::kExpAvg ||
                          kind == ChunkKind::kExpAvgSq || kind == ChunkKind::kGrad;
    const auto is_refused =
        StatusIs(absl::StatusCode::kNotFound, HasSubstr(std::string(ChunkKindName(kind))));
    if (is_value) {
      EXPECT_OK(model_->Read("first", kind, Ignore));
    } else {
      EXPECT_THAT(model_->Read("first", kind, Ignore), is_refused);
    }
    if (is_value && kind != ChunkKind::kGrad) {
      EXPECT_OK(Fill("first", kind, 1));
    } else {
      EXPECT_THAT(Fill("first", kind, 1), StatusIs(absl::StatusCode::kNotFound));
    }
  }
}

// As Torch's optimizers.
TEST_F(SpaceModelTest, WithoutAnyGradientAStepIsNone) {
  ASSERT_OK_AND_ASSIGN(const StepResult none, model_->Step({}));
  EXPECT_EQ(none.step, 0);
  EXPECT_EQ(none.grad_norm, 0);
  EXPECT_FALSE(none.skipped);
  net_->Backward();
  ASSERT_OK_AND_ASSIGN(const StepResult first, model_->Step({}));
  EXPECT_EQ(first.step, 1);
  net_->zero_grad();
  const std::vector<float> before = ReadAll("first");
  ASSERT_OK_AND_ASSIGN(const StepResult again, model_->Step({}));
  EXPECT_EQ(again.step, 1);
  EXPECT_EQ(model_->step(), 1);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(store_->CommittedStep(BundleId(i)), 1);
  EXPECT_EQ(ReadAll("first"), before);
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

// HOST holds a fifth of the chunks: each update needs the disk.
class UpdateWithoutItsServer : public SpaceModelTest {
 protected:
  struct Long : torch::nn::Module {
    Long() {
      for (int i = 0; i < 20; ++i) {
        weights.push_back(register_parameter("w" + std::to_string(i), torch::randn({128, 128})));
      }
    }
    std::vector<at::Tensor> weights;
  };
  int64_t nvme_slots() const override { return 80; }
};

TEST_F(UpdateWithoutItsServer, FailsLatchesAndNeverShowsAnOlderVersion) {
  torch::manual_seed(2);
  Long module;
  ASSERT_OK_AND_ASSIGN(std::vector<ModuleTensor> tensors, CollectModuleTensors(module, {}));
  std::unique_ptr<SpaceModel> model;
  ChunkStore* store = nullptr;
  MakeModel("long", std::move(tensors), SpareSlots({}), store, model);
  ASSERT_NE(model, nullptr);
  for (int step = 1; step <= 2; ++step) {
    module.zero_grad();
    for (const at::Tensor& weight : module.weights) (weight * weight).sum().backward();
    std::latch held(1);
    auto server_gone = std::make_shared<std::latch>(1);
    if (step == 2) {
      model->updates().Later([&held, server_gone] {
        held.count_down();
        server_gone->wait();
      });
      held.wait();
    }
    ASSERT_OK(model->Step({}));
    if (step == 1) {
      ASSERT_OK(model->FinishUpdates());
      continue;
    }
    server_.reset();
    server_gone->count_down();
    EXPECT_THAT(store->updates().AwaitCommits(), StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(model->Step({}), StatusIs(absl::StatusCode::kUnavailable));
  int64_t failed = 0;
  for (int64_t i = 0; i < 20; ++i) {
    const absl::Status read = model->Read("w" + std::to_string(i), ChunkKind::kParam, &Ignore);
    EXPECT_TRUE(read.ok() || absl::IsUnavailable(read)) << read;
    if (read.ok()) {
      EXPECT_EQ(store->CommittedStep(BundleId(i)), 2) << i;
    }
    failed += !read.ok();
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace gemini::client::hooks
