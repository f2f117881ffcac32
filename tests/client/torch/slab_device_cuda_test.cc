// SPDX-License-Identifier: Apache-2.0
// Training on a device whose chunks lie in slabs, beside memory that operators take themselves: as
// on a GPU, but with the CPU's operators and a driver whose memory is the process's own. What CUDA
// and Torch's allocator do is not seen here.

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/device/device_slabs_cuda.h"
#include "client/kernels/device_kernels_host.h"
#include "client/kernels/grad_norm.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/status_macros.h"
#include "gmock/gmock.h"
#include "server/tiers/tier_store_cuda.h"
#include "tests/client/torch/small_models.h"
#include "tests/client/torch/training_fixture.h"
#include "tests/fake_cuda_driver.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"

namespace gemini::client::hooks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSlab = 128 * kKiB;
constexpr int64_t kDeviceMemory = 16 * kSlab;

// As those of a GPU: they may have no memory for a kernel once, and sum gradients that leave.
class FakeGpuKernels : public DeviceKernelsHost {
 public:
  using DeviceKernelsHost::DeviceKernelsHost;
  void Update(const UpdateSettings& settings, const UpdateStreams& streams,
              int64_t count) override {
    ++num_updates;
    DeviceKernelsHost::Update(settings, streams, count);
  }
  absl::Status Finish() override { return std::exchange(failure, absl::OkStatus()); }
  // Sums that no chunk has show who used them.
  int64_t least_summed_elements() const override { return least_summed; }
  absl::Status BeginBlockSquares(ElementType type, const GradientRun& run, double* sums) override {
    GEMINI_RETURN_IF_ERROR(DeviceKernelsHost::BeginBlockSquares(type, run, sums));
    for (int64_t i = 0; i < NumNormBlocks(run.count); ++i) sums[i] *= factor;
    return absl::OkStatus();
  }

  absl::StatusOr<TrustSquares> TrustSquaresOf(absl::Span<const TrustRun> runs) override {
    ++num_trust_ratios;
    // A slow kernel works until the clock by which operators are timed has gone on so far.
    const int64_t end_ns = TimelineNowNs() + std::chrono::nanoseconds(trust_ratios_take).count();
    for (;;) {
      absl::StatusOr<TrustSquares> squares = DeviceKernelsHost::TrustSquaresOf(runs);
      if (!squares.ok() || TimelineNowNs() >= end_ns) return squares;
    }
  }

  int num_updates = 0, num_trust_ratios = 0;
  std::chrono::milliseconds trust_ratios_take{0};
  absl::Status failure;
  int64_t least_summed = std::numeric_limits<int64_t>::max();
  double factor = 1;
};

class SlabDevice : public SessionDevice {
 public:
  explicit SlabDevice(const CudaDriver& driver) : driver_(driver) {}

  c10::Device device() const override { return c10::Device(at::kCPU); }
  absl::Status Configure(SessionOptions& options) override {
    if (options.want_bytes[Tier::kDevice] <= kContextBytes) {
      return absl::ResourceExhaustedError("no room for a context");
    }
    options.apart_bytes = kContextBytes;
    options.make_slabs = [this](const DeviceSlabsOffer& offer) {
      return DeviceSlabsCuda::Reserve(driver_, 0, offer);
    };
    return absl::OkStatus();
  }
  void Begin(std::shared_ptr<Session> session, BudgetFollower& follower) override {
    session_ = std::move(session);
    follower_ = &follower;
    kernels_.emplace(session_->update_team());
  }
  void End() override {
    kernels_.reset();
    session_.reset();
  }
  DeviceKernels& kernels() override { return *kernels_; }
  std::optional<FakeGpuKernels>& fake_kernels() { return kernels_; }
  void EndStep() override {
    ++num_steps;
    if (!apart_after_step) return;
    follower_->SetApart(apart_after_step(num_steps));
  }
  bool GiveWay() override { return session_ != nullptr; }
  absl::Status CheckOperators() const override { return refusal; }
  std::byte* NanScratch(int64_t size_bytes) override {
    scratch_.assign(static_cast<size_t>(size_bytes), std::byte{0xff});
    return scratch_.data();
  }
  int64_t non_model_peak_bytes() const override { return kSlab; }

  static constexpr int64_t kContextBytes = 3 * kSlab;
  int num_steps = 0;
  std::function<int64_t(int step)> apart_after_step;
  absl::Status refusal;

 private:
  const CudaDriver& driver_;
  std::shared_ptr<Session> session_;
  std::optional<FakeGpuKernels> kernels_;
  BudgetFollower* follower_ = nullptr;
  std::vector<std::byte> scratch_;
};

class SlabDeviceTest : public TrainingTest {
 protected:
  ~SlabDeviceTest() override {
    session_.reset();
    server_.reset();
    EXPECT_EQ(fake_.num_mappings(), 0);
    EXPECT_EQ(fake_.num_handles(), 0);
    EXPECT_EQ(fake_.num_ranges(), 0);
  }

  TrainingOptions Options() {
    TrainingOptions options = SmallOptions();
    options.device_memory = kDeviceMemory;
    options.device = device_;
    return options;
  }
  absl::Status OpenOn(const TrainingOptions& options) {
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = kDeviceMemory;
    server_options.capacity_bytes[Tier::kHost] = options.host_memory;
    server_options.make_device = [this](int64_t capacity_bytes) {
      return server::MakeCudaTierStore(fake_.driver(), 0, capacity_bytes, kSlab);
    };
    GEMINI_ASSIGN_OR_RETURN(server_, server::EmbeddedServer::Start(server_options));
    GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, server_->Connect());
    GEMINI_ASSIGN_OR_RETURN(session_, TrainingSession::Open(std::move(socket), options));
    return absl::OkStatus();
  }
  int64_t chunk_budget_bytes() const { return session_->session().device_budget().budget_bytes(); }

  FakeCudaDriver fake_{/*memory_bytes=*/kGiB, /*granularity_bytes=*/kSlab};
  const std::shared_ptr<SlabDevice> device_ = std::make_shared<SlabDevice>(fake_.driver());
};

TEST_F(SlabDeviceTest, TheSameNumbersWhateverIsApart) {
  constexpr int kSteps = 8;
  OptimizerSpec spec;
  spec.learning_rate = 0.01;
  std::vector<float> expected;
  torch::manual_seed(7);
  Transformer reference;
  ReferenceAdamW optimizer(UniqueParameters(reference), spec);
  for (int step = 0; step < kSteps; ++step) {
    reference.zero_grad();
    const at::Tensor loss = reference.Loss(step);
    loss.backward();
    expected.push_back(loss.item<float>());
    optimizer.Step();
  }
  // Slabs that chunks have: before the first step, and as each step's end has them.
  const std::vector<int64_t> slabs = {13, 6, 16, 9, 16, 5, 5, 16, 13};
  device_->apart_after_step = [&slabs](int step) { return kDeviceMemory - slabs[step] * kSlab; };
  torch::manual_seed(7);
  Transformer managed;
  ASSERT_OK(OpenOn(Options()));
  ManagedModel* const model = Manage(managed, spec);
  ASSERT_NE(model, nullptr);
  for (int step = 0; step < kSteps; ++step) {
    managed.zero_grad();
    const at::Tensor loss = managed.Loss(step);
    EXPECT_EQ(chunk_budget_bytes(), slabs[step] * kSlab) << step;
    EXPECT_EQ(fake_.num_mappings(), slabs[step]) << step;
    EXPECT_EQ(session_->stats().device_budget_bytes, kDeviceMemory);
    loss.backward();
    EXPECT_EQ(loss.item<float>(), expected[step]) << step;
    ASSERT_OK(model->Step({}));
    EXPECT_EQ(device_->num_steps, step + 1);
  }
  for (const auto& item : reference.named_parameters()) {
    EXPECT_TRUE(managed.named_parameters()[item.key()].equal(item.value())) << item.key();
  }
  EXPECT_GT(session_->stats().phases.planned_rounds, 0);
  EXPECT_EQ(session_->stats().non_model_peak_bytes, kSlab);
}

TEST_F(SlabDeviceTest, AnUpdateThatFailsOnDeviceIsRefusedAndTheStepCanBeTakenAgain) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(at::toString(type));
    std::vector<std::vector<float>> values[2];
    for (const bool fails : {false, true}) {
      torch::manual_seed(7);
      Transformer module;
      module.to(type);
      TrainingOptions options = Options();
      options.policy.kind = PolicyKind::kCuda;
      ASSERT_OK(OpenOn(options));
      ManagedModel* const model = Manage(module);
      ASSERT_NE(model, nullptr);
      FakeGpuKernels& kernels = *device_->fake_kernels();
      for (int step = 0; step < 4; ++step) {
        module.zero_grad();
        module.Loss(step).backward();
        if (fails && step == 2) {
          ASSERT_GT(kernels.num_updates, 0);
          kernels.failure = absl::ResourceExhaustedError("no memory for a kernel");
          EXPECT_THAT(model->Step({}), StatusIs(absl::StatusCode::kResourceExhausted,
                                                HasSubstr("no memory for a kernel")));
          EXPECT_EQ(model->step(), step);
        }
        ASSERT_OK(model->Step({}));
      }
      for (const auto& item : module.named_parameters()) {
        for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
          if (kind != ChunkKind::kParam && !item.value().requires_grad()) continue;
          values[fails].push_back(ReadAll(*model, item.key(), kind));
        }
      }
      EXPECT_OK(session_->status());
      session_.reset();
      server_.reset();
    }
    EXPECT_EQ(values[0], values[1]);
  }
}

// As `gemini-train --device cuda:0 --policy static --optimizer-fraction 0.5`, and `--policy cuda`.
TEST_F(SlabDeviceTest, HalfOfTheStatesOrAllAreUpdatedOnDevice) {
  std::vector<std::vector<float>> values[3];
  std::vector<int64_t> updates;
  const PolicyOptions policies[] = {{.kind = PolicyKind::kCpu},
                                    {.kind = PolicyKind::kStatic, .optimizer_fraction = 0.5},
                                    {.kind = PolicyKind::kCuda}};
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(PolicyKindName(policies[i].kind));
    torch::manual_seed(7);
    Transformer module;
    TrainingOptions options = Options();
    options.policy = policies[i];
    ASSERT_OK(OpenOn(options));
    ManagedModel* const model = Manage(module);
    ASSERT_NE(model, nullptr);
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      module.Loss(step).backward();
      ASSERT_OK(model->Step({}));
    }
    EXPECT_GE(session_->stats().phases.planned_rounds, 3);
    updates.push_back(device_->fake_kernels()->num_updates);
    for (const auto& item : module.named_parameters()) {
      values[i].push_back(ReadAll(*model, item.key()));
    }
    EXPECT_OK(session_->status());
    session_.reset();
    server_.reset();
  }
  EXPECT_EQ(updates[0], 0);
  EXPECT_GT(updates[1], 0);
  EXPECT_GT(updates[2], updates[1]);
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(values[2], values[0]);
}

// All gradients leave. The norm is made of what was summed before, unless the chunk in HOST is
// another than that which left.
TEST_F(SlabDeviceTest, GradientsThatLeaveAreSummedBefore) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(at::toString(type));
    std::vector<double> norms[2];
    for (const bool sums_before : {false, true}) {
      torch::manual_seed(7);
      Transformer module;
      module.to(type);
      TrainingOptions options = Options();
      options.chunk_bytes = 16 * kKiB;  // Tensors span several.
      options.policy.kind = PolicyKind::kCpu;
      ASSERT_OK(OpenOn(options));
      ManagedModel* const model = Manage(module);
      ASSERT_NE(model, nullptr);
      FakeGpuKernels& kernels = *device_->fake_kernels();
      const auto step_with = [&](int step, double factor, bool edits) {
        kernels.factor = factor;
        // Of the one step all, else what is not small.
        if (sums_before) kernels.least_summed = factor == 1 ? 5'000 : 1;
        module.zero_grad();
        module.Loss(step).backward();
        if (edits) {
          for (const at::Tensor& parameter : module.parameters()) {
            if (!parameter.grad().defined()) continue;
            const at::NoGradGuard no_grad;
            parameter.grad().mul_(0.5);
          }
        }
        const absl::StatusOr<StepResult> result = model->Step({});
        EXPECT_OK(result.status());
        return result.ok() ? result->grad_norm : 0;
      };
      for (int step = 0; step < 5; ++step) {
        // Those of a step are 4, or nobody's.
        const double norm = step_with(step, step == 2 ? 4 : 1, /*edits=*/step >= 3);
        norms[sums_before].push_back(sums_before && step == 2 ? norm / 2 : norm);
      }
      // Changed on DEVICE since: what left is not what is there.
      norms[sums_before].push_back(step_with(5, /*factor=*/9, /*edits=*/true));
      // The same gradients once more, and the sum of two.
      norms[sums_before].push_back(step_with(6, /*factor=*/1, /*edits=*/false));
      const absl::StatusOr<StepResult> again = model->Step({});
      ASSERT_OK(again.status());
      EXPECT_EQ(again->grad_norm, norms[sums_before].back());
      module.zero_grad();
      module.Loss(6).backward();
      module.Loss(7).backward();
      const absl::StatusOr<StepResult> accumulated = model->Step({});
      ASSERT_OK(accumulated.status());
      norms[sums_before].push_back(accumulated->grad_norm);
      // A step that is not taken, and one that is.
      kernels.factor = 1;
      module.zero_grad();
      (module.Loss(6) * std::numeric_limits<float>::infinity()).backward();
      EXPECT_FALSE(model->Step({}).ok());
      norms[sums_before].push_back(step_with(7, /*factor=*/1, /*edits=*/false));
      EXPECT_OK(session_->status());
      session_.reset();
      server_.reset();
    }
    EXPECT_EQ(norms[0], norms[1]);
  }
}

// Whoever holds a gradient may write to it on a stream of its own, so what leaves is what HOST
// sums.
TEST_F(SlabDeviceTest, GradientsThatOthersHoldAreSummedInHost) {
  struct Hold : torch::autograd::PostAccumulateGradHook {
    explicit Hold(std::vector<at::Tensor>& held) : gradients(held) {}
    void operator()(const at::Tensor& parameter) override { gradients.push_back(parameter.grad()); }
    std::vector<at::Tensor>& gradients;
  };
  std::vector<double> norms;
  for (const bool holds : {false, true}) {
    std::vector<at::Tensor> held;
    torch::manual_seed(7);
    Transformer module;
    for (const at::Tensor& parameter : module.parameters()) {
      if (!holds || !parameter.requires_grad()) continue;
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hold>(held));
    }
    TrainingOptions options = Options();
    options.policy.kind = PolicyKind::kCpu;
    ASSERT_OK(OpenOn(options));
    ManagedModel* const model = Manage(module);
    ASSERT_NE(model, nullptr);
    // Sums of nobody's, where they are asked for.
    device_->fake_kernels()->least_summed = holds ? 1 : std::numeric_limits<int64_t>::max();
    device_->fake_kernels()->factor = 9;
    module.Loss(1).backward();
    const absl::StatusOr<StepResult> result = model->Step({});
    ASSERT_OK(result.status());
    norms.push_back(result->grad_norm);
    EXPECT_EQ(held.empty(), !holds);
    held.clear();
    session_.reset();
    server_.reset();
  }
  EXPECT_EQ(norms[0], norms[1]);
}

// Plans time them where they have them.
TEST_F(SlabDeviceTest, WhatTrustRatiosTakeIsNotMeasuredAsComputing) {
  constexpr std::chrono::milliseconds kTake(800);
  torch::manual_seed(7);
  Transformer module;
  TrainingOptions options = Options();
  options.policy.kind = PolicyKind::kCuda;
  ASSERT_OK(OpenOn(options));
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kLamb;
  ManagedModel* const model = Manage(module, spec);
  ASSERT_NE(model, nullptr);
  device_->fake_kernels()->trust_ratios_take = kTake;
  for (int step = 0; step < 4; ++step) {
    module.zero_grad();
    module.Loss(step).backward();
    ASSERT_OK(model->Step({}));
  }
  EXPECT_GE(device_->fake_kernels()->num_trust_ratios, 3);
  ASSERT_OK_AND_ASSIGN(const Trace trace, session_->phases().TraceOf("train"));
  EXPECT_LT(trace.operators.back().compute_ns, std::chrono::nanoseconds(kTake).count() / 2);
}

// Such as the capture of a graph.
TEST_F(SlabDeviceTest, OperatorsThatTheDeviceRefusesGetNaNAndEndTheSession) {
  Transformer managed;
  ASSERT_OK(OpenOn(Options()));
  ManagedModel* const model = Manage(managed);
  ASSERT_NE(model, nullptr);
  device_->refusal = absl::FailedPreconditionError("recorded, not done");
  const at::Tensor loss = managed.Loss(1);
  EXPECT_TRUE(loss.isnan().item<bool>());
  device_->refusal = absl::OkStatus();
  EXPECT_THAT(model->Step({}), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("recorded, not done"), HasSubstr("aten::"),
                                              HasSubstr("parameter head"))));
  EXPECT_EQ(device_->num_steps, 0);
}

TEST_F(SlabDeviceTest, ABudgetWithoutRoomForTheDeviceItselfIsRefused) {
  TrainingOptions options = Options();
  options.device_memory = SlabDevice::kContextBytes;
  EXPECT_THAT(OpenOn(options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no room for a context")));
}

TEST_F(SlabDeviceTest, OperatorsAreGivenMoreWhileTheSessionIsOpen) {
  ASSERT_OK(OpenOn(Options()));
  EXPECT_EQ(session_->device(), c10::Device(at::kCPU));
  EXPECT_TRUE(session_->GiveWay());
  ASSERT_OK(session_->Close());
  EXPECT_FALSE(session_->GiveWay());
}

// There chunks give way at once, operator by operator.
TEST_F(SlabDeviceTest, TheCpuHasNoMoreToGive) {
  Open(SmallOptions());
  EXPECT_FALSE(session_->GiveWay());
}

}  // namespace
}  // namespace gemini::client::hooks
