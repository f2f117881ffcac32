// SPDX-License-Identifier: Apache-2.0
// Training on a real GPU: Torch's operators, allocator and autograd threads over slabs, under a cap
// that counts all.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "ATen/Context.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAGuard.h"
#include "client/torch/device/gpu_device.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/tier_store_cuda.h"
#include "tests/client/torch/training_fixture.h"
#include "tests/gpu/probe/nvml.h"
#include "torch/nn/modules/linear.h"

namespace gemini::client::hooks {
namespace {

constexpr int64_t kSlab = 64 * kMiB;
constexpr int64_t kWidth = 1024;
constexpr int kLayers = 6;
// So many that a quarter of what they take has room for CUDA's own part.
constexpr int kManyLayers = 40;
constexpr int kSteps = 20;
constexpr int64_t kSmallBudget = 2 * kGiB;
constexpr int64_t kLargeBudget = 8 * kGiB;
constexpr int64_t kHugeBudget =
    12 * kGiB;  // For chunks some half of it, once operators' part is known.
constexpr int64_t kHostBytes = 12 * kGiB;

// 32 MiB of parameters a layer in fp32, in matrices of 16 MiB.
struct Stack : torch::nn::Module {
  explicit Stack(c10::ScalarType type, int num_layers = kLayers) {
    for (int i = 0; i < num_layers; ++i) {
      in.push_back(
          register_module("in" + std::to_string(i), torch::nn::Linear(kWidth, 4 * kWidth)));
      out.push_back(
          register_module("out" + std::to_string(i), torch::nn::Linear(4 * kWidth, kWidth)));
    }
    to(type);
  }
  at::Tensor Loss(int64_t seed, c10::Device device) {
    torch::manual_seed(seed);
    at::Tensor x = at::randn({32, kWidth}).to(in[0]->weight.scalar_type()).to(device);
    for (size_t i = 0; i < in.size(); ++i) {
      const at::Tensor heads = x.view({1, 32, 16, kWidth / 16}).transpose(1, 2);
      // A tenth: what the layers add up stays far from the largest number of 16 bits.
      x = x + 0.1 * at::scaled_dot_product_attention(heads, heads, heads, {}, 0, /*is_causal=*/true)
                        .transpose(1, 2)
                        .reshape({32, kWidth});
      x = x + 0.1 * out[i]->forward(in[i]->forward(x).relu());
    }
    return x.to(at::kFloat).square().mean();
  }
  std::vector<torch::nn::Linear> in, out;
};

// What a run of some steps comes to.
struct Trained {
  std::vector<float> losses;
  std::vector<double> norms;
  std::vector<std::vector<float>> parameters;
};

// The most that NVML says is in use of the whole GPU while this lives: others on it would show,
// too.
class PeakOfGpu {
 public:
  PeakOfGpu()
      : sampler_([this](const std::stop_token& end) {
          std::unique_lock lock(mutex_);
          do {
            bytes_ = std::max(bytes_.load(), probe::UsedDeviceBytes());
            // Looks again after a while, as others' calls of the driver wait for this one's.
          } while (!ended_.wait_for(lock, end, std::chrono::milliseconds(1),
                                    [&] { return end.stop_requested(); }));
        }) {}
  int64_t bytes() const { return bytes_; }

 private:
  std::atomic<int64_t> bytes_ = 0;
  std::mutex mutex_;  // For `ended_`, which waits for the stop token.
  std::condition_variable_any ended_;
  std::jthread sampler_;  // Its end asks the thread to stop and joins it.
};

class TrainingOnGpu : public TrainingTest {
 protected:
  static void SetUpTestSuite() {
    UsedBefore();
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    auto opened = OpenGpu(0);
    ASSERT_OK(opened);
    device_ = *std::move(opened);
  }
  static void TearDownTestSuite() { device_.reset(); }
  // Before the first call of CUDA, whose context is a part of what is capped.
  static int64_t UsedBefore() {
    static const int64_t bytes = probe::UsedDeviceBytes();
    return bytes;
  }

  absl::Status OpenOnGpu(int64_t device_memory, PolicyKind policy = PolicyKind::kAuto) {
    session_.reset();
    server_.reset();
    GEMINI_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Find());
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = device_memory;
    server_options.capacity_bytes[Tier::kHost] = kHostBytes;
    server_options.make_device = [driver](int64_t capacity_bytes) {
      return server::MakeCudaTierStore(*driver, 0, capacity_bytes, kSlab);
    };
    GEMINI_ASSIGN_OR_RETURN(server_, server::EmbeddedServer::Start(server_options));
    GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, server_->Connect());
    TrainingOptions options;
    options.device = device_;
    options.device_memory = device_memory;
    options.host_memory = kHostBytes;
    options.chunk_bytes = 4 * kMiB;
    options.label = "gpu";
    options.policy.kind = policy;
    if (policy == PolicyKind::kStatic) {
      options.policy.param_fraction = 0.1;
      options.policy.optimizer_fraction = optimizer_fraction_;
    }
    GEMINI_ASSIGN_OR_RETURN(session_, TrainingSession::Open(std::move(socket), options));
    return absl::OkStatus();
  }

  void Train(int64_t device_memory, PolicyKind policy, c10::ScalarType type, Trained& result,
             OptimizerKind optimizer = OptimizerKind::kAdamW, int num_layers = kLayers) {
    torch::manual_seed(7);
    Stack model(type, num_layers);
    ASSERT_OK(OpenOnGpu(device_memory, policy));
    OptimizerSpec spec;
    spec.kind = optimizer;
    spec.learning_rate = 1e-3;
    ManagedModel* const managed = Manage(model, spec);
    ASSERT_NE(managed, nullptr);
    for (int step = 0; step < kSteps; ++step) {
      // As the trainer does where operators found no memory.
      std::optional<float> value;
      while (!value) {
        model.zero_grad();
        try {
          const at::Tensor loss = model.Loss(step, device_->device());
          loss.backward();
          value = loss.item<float>();
        } catch (const c10::OutOfMemoryError& error) {
          model.zero_grad();
          ASSERT_TRUE(session_->GiveWay()) << "step " << step << ": " << error.what();
        }
      }
      result.losses.push_back(*value);
      StepOptions options;
      options.max_grad_norm = 1;
      ASSERT_OK_AND_ASSIGN(const StepResult taken, managed->Step(options));
      result.norms.push_back(taken.grad_norm);
    }
    for (const auto& item : model.named_parameters()) {
      result.parameters.push_back(ReadAll(*managed, item.key()));
    }
    ASSERT_OK(session_->status());
  }

  static std::shared_ptr<SessionDevice> device_;
  double optimizer_fraction_ = 0;  // Of kStatic.
};
std::shared_ptr<SessionDevice> TrainingOnGpu::device_;

// A quarter of all that the process took without one.
class CapOnGpu : public TrainingOnGpu, public ::testing::WithParamInterface<c10::ScalarType> {
 protected:
  // Returns the most that the process took of the GPU.
  int64_t TrainMany(int64_t device_memory, PolicyKind policy, Trained& result) {
    session_.reset();  // That of before is no part of it.
    server_.reset();
    const auto begin = std::chrono::steady_clock::now();
    int64_t peak_bytes = 0;
    {
      const PeakOfGpu peak;
      Train(device_memory, policy, GetParam(), result, OptimizerKind::kAdamW, kManyLayers);
      peak_bytes = peak.bytes() - UsedBefore();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf(
        "{\"type\": \"%s\", \"policy\": %d, \"cap_MiB\": %.0f, \"peak_MiB\": %.0f, "
        "\"fetched_MiB\": %.0f, "
        "\"seconds\": %.1f}\n",
        at::toString(GetParam()), static_cast<int>(policy), probe::MiB(device_memory),
        probe::MiB(peak_bytes), probe::MiB(session_ ? session_->stats().fetch_bytes : 0),
        seconds.count());
    return peak_bytes;
  }
};

TEST_P(CapOnGpu, TheBitsAreThoseWithoutOne) {
  Trained large;
  const int64_t peak_bytes = TrainMany(kHugeBudget, PolicyKind::kCuda, large);
  if (HasFatalFailure()) return;
  EXPECT_LT(large.losses.back(), large.losses.front());
  const int64_t cap_bytes = peak_bytes / 4 / kSlab * kSlab;
  // Parameters come again and again.
  const int64_t parameter_bytes =
      int64_t{kManyLayers} * 8 * kWidth * kWidth * at::elementSize(GetParam());
  for (const PolicyKind policy :
       {PolicyKind::kAuto, PolicyKind::kOnline, PolicyKind::kStatic, PolicyKind::kCpu}) {
    SCOPED_TRACE(static_cast<int>(policy));
    Trained small;
    EXPECT_LE(TrainMany(cap_bytes, policy, small), cap_bytes);
    if (HasFatalFailure()) return;
    EXPECT_EQ(small.losses, large.losses);
    EXPECT_EQ(small.norms, large.norms);
    EXPECT_TRUE(small.parameters == large.parameters);
    EXPECT_GT(session_->stats().fetch_bytes, kSteps * parameter_bytes / 2);
  }
}
INSTANTIATE_TEST_SUITE_P(Types, CapOnGpu, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

// With everything on the GPU, updates among it, with half of the updates there, and with all in
// HOST.
TEST_F(TrainingOnGpu, UpdatesOnTheGpuHaveTheBitsOfThoseInHost) {
  using Format = std::pair<c10::ScalarType, OptimizerKind>;
  for (const auto& [type, optimizer] :
       {Format{at::kFloat, OptimizerKind::kAdamW}, Format{at::kBFloat16, OptimizerKind::kAdamW},
        Format{at::kHalf, OptimizerKind::kSgd}, Format{at::kBFloat16, OptimizerKind::kLamb},
        Format{at::kFloat, OptimizerKind::kLars}}) {
    SCOPED_TRACE(absl::StrCat(at::toString(type), " ", OptimizerKindName(optimizer)));
    Trained in_host, on_gpu, half_on_gpu;
    Train(kLargeBudget, PolicyKind::kCpu, type, in_host, optimizer);
    if (HasFatalFailure()) return;
    ASSERT_OK_AND_ASSIGN(const Plan without, session_->phases().PlanOf("train"));
    EXPECT_TRUE(without.device_updates.empty());
    Train(kLargeBudget, PolicyKind::kCuda, type, on_gpu, optimizer);
    if (HasFatalFailure()) return;
    ASSERT_OK_AND_ASSIGN(const Plan plan, session_->phases().PlanOf("train"));
    EXPECT_FALSE(plan.device_updates.empty());
    optimizer_fraction_ = 0.5;
    Train(kLargeBudget, PolicyKind::kStatic, type, half_on_gpu, optimizer);
    if (HasFatalFailure()) return;
    ASSERT_OK_AND_ASSIGN(const Plan half, session_->phases().PlanOf("train"));
    EXPECT_FALSE(half.device_updates.empty());
    EXPECT_LT(half.device_updates.size(), plan.device_updates.size());
    for (const Trained* trained : {&on_gpu, &half_on_gpu}) {
      EXPECT_EQ(trained->losses, in_host.losses);
      EXPECT_EQ(trained->norms, in_host.norms);
      EXPECT_TRUE(trained->parameters == in_host.parameters);
    }
  }
}

// The context among it, as it is since OpenGpu.
TEST_F(TrainingOnGpu, TheCapHoldsForAllThatTheProcessTakes) {
  session_.reset();
  server_.reset();
  const PeakOfGpu peak;
  Trained trained;
  Train(kSmallBudget, PolicyKind::kAuto, at::kFloat, trained);
  std::printf("{\"cap_MiB\": %.0f, \"before_MiB\": %.0f, \"peak_beside_that_MiB\": %.0f}\n",
              probe::MiB(kSmallBudget), probe::MiB(UsedBefore()),
              probe::MiB(peak.bytes() - UsedBefore()));
  EXPECT_LE(peak.bytes() - UsedBefore(), kSmallBudget);
}

TEST_F(TrainingOnGpu, WhatOperatorsTakeIsTheirsAndMoreIsGiven) {
  Stack model(at::kFloat);
  ASSERT_OK(OpenOnGpu(kSmallBudget));
  ASSERT_NE(Manage(model), nullptr);
  model.Loss(0, device_->device()).backward();
  const int64_t all_bytes = session_->session().granted_bytes()[Tier::kDevice];
  const auto allocate = [&](int64_t size_bytes) {
    try {
      at::empty({size_bytes}, at::TensorOptions().dtype(at::kByte).device(device_->device()));
      return true;
    } catch (const c10::OutOfMemoryError&) {
      return false;
    }
  };
  EXPECT_FALSE(allocate(all_bytes));
  int64_t limit_bytes = session_->session().device().apart_bytes();
  int given = 0;
  while (session_->GiveWay()) {
    EXPECT_GT(session_->session().device().apart_bytes(), limit_bytes);
    limit_bytes = session_->session().device().apart_bytes();
    EXPECT_LE(limit_bytes + session_->session().device_budget().budget_bytes(), all_bytes);
    ++given;
  }
  EXPECT_GT(given, 0);
  EXPECT_GT(session_->session().device_budget().budget_bytes(), 0);
  EXPECT_FALSE(allocate(all_bytes));
  // What chunks have left is enough for each operator.
  model.zero_grad();
  model.Loss(1, device_->device()).backward();
  EXPECT_OK(session_->status());
}

TEST_F(TrainingOnGpu, TheCaptureOfAGraphIsRefused) {
  Stack model(at::kFloat);
  ASSERT_OK(OpenOnGpu(kSmallBudget));
  ManagedModel* const managed = Manage(model);
  ASSERT_NE(managed, nullptr);
  model.Loss(0, device_->device()).backward();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    ASSERT_EQ(::cudaStreamBeginCapture(side.stream(), cudaStreamCaptureModeRelaxed), cudaSuccess);
    try {
      model.in[0]->weight.square();
    } catch (const std::exception&) {
      // Torch's allocator may refuse the output.
    }
    cudaGraph_t graph = nullptr;
    ::cudaStreamEndCapture(side.stream(), &graph);
    if (graph != nullptr) ::cudaGraphDestroy(graph);
    ::cudaGetLastError();
  }
  EXPECT_THAT(managed->Step({}), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          ::testing::HasSubstr("a CUDA graph is being captured")));
}

}  // namespace
}  // namespace gemini::client::hooks
