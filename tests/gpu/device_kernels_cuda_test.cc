// SPDX-License-Identifier: Apache-2.0
// What is computed on chunks in a GPU's memory, against what a team of threads makes of the same
// bytes.
#include "client/kernels/device_kernels_cuda.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "client/kernels/device_kernels_host.h"
#include "client/kernels/grad_norm.h"
#include "gemini/half_float.h"
#include "gemini/system/cuda_driver.h"
#include "gtest/gtest.h"
#include "tests/client/kernels/random_trust_run.h"
#include "tests/gpu/probe/probe.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

class DeviceKernelsOnGpu : public ::testing::Test {
 protected:
  ~DeviceKernelsOnGpu() override {
    for (void* const memory : memories_) ::cudaFree(memory);
  }
  // A copy of the bytes on the GPU.
  std::byte* OnGpu(const std::vector<std::byte>& bytes) {
    void*& memory = memories_.emplace_back();
    GEMINI_NEED(::cudaMalloc(&memory, std::max<size_t>(bytes.size(), 1)));
    GEMINI_NEED(::cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    return static_cast<std::byte*>(memory);
  }
  std::vector<std::byte> RandomHalves(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<std::byte> bytes(static_cast<size_t>(2 * count));
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t half = Fp16Of(normal(random_));
      std::memcpy(bytes.data() + 2 * i, &half, sizeof(half));
    }
    return bytes;
  }

  std::mt19937_64 random_{1};
  std::vector<void*> memories_;
  WorkerTeam team_{4};
  DeviceKernelsHost host_{team_};
  DeviceKernelsCuda gpu_{**CudaDriver::Find(), 0, [] { return cudaStream_t{nullptr}; }};
};

// More blocks than are fetched together, and runs that end where a fetch does, and between.
TEST_F(DeviceKernelsOnGpu, SquaresOfManyRunsAreThoseOfTheHost) {
  constexpr int64_t kBatch = int64_t{1} << 29;  // Elements.
  const std::vector<std::byte> gradients = RandomHalves(int64_t{1} << 20);
  std::byte* const on_gpu = OnGpu(gradients);
  std::vector<GradientRun> host_runs, gpu_runs;
  int64_t elements = 0;
  const auto add = [&](int64_t first, int64_t count) {
    host_runs.push_back({gradients.data() + 2 * first, count});
    gpu_runs.push_back({on_gpu + 2 * first, count});
    elements += count;
  };
  for (const int64_t count : {1, 7, 1023, 1024, 1025, 5000}) add(1024, count);
  while (elements < kBatch + kBatch / 8) add(0, int64_t{1} << 20);
  ASSERT_OK_AND_ASSIGN(const std::vector<double> expected,
                       host_.BlockSquaresOf(ElementType::kFp16, host_runs));
  ASSERT_OK_AND_ASSIGN(const std::vector<double> squares,
                       gpu_.BlockSquaresOf(ElementType::kFp16, gpu_runs));
  EXPECT_EQ(squares, expected);
  EXPECT_THAT(gpu_.BlockSquaresOf(ElementType::kFp16, {}), IsOkAndHolds(::testing::IsEmpty()));
}

// Moments that go on in a second chunk inside a norm block, and none.
TEST_F(DeviceKernelsOnGpu, SquaresOfTrustRatiosAreThoseOfTheHost) {
  for (const ElementType element : kAllElementTypes) {
    for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars}) {
      const StateFormat format = {.element = element, .optimizer = kind};
      const RandomTrustRun with(format, /*has_moments=*/true, /*seed=*/1);
      const RandomTrustRun without(format, /*has_moments=*/false, /*seed=*/2);
      const std::vector<TrustRun> runs = {with.run(), without.run()};
      std::vector<TrustRun> on_gpu = runs;
      for (TrustRun& run : on_gpu) {
        for (ValueChunks* const values : {&run.param, &run.grad, &run.exp_avg, &run.exp_avg_sq}) {
          for (std::byte*& chunk : values->chunks) {
            chunk = OnGpu({chunk, chunk + RandomTrustRun::kChunkBytes});
          }
        }
      }
      ASSERT_OK_AND_ASSIGN(const TrustSquares expected, host_.TrustSquaresOf(runs));
      ASSERT_OK_AND_ASSIGN(const TrustSquares squares, gpu_.TrustSquaresOf(on_gpu));
      EXPECT_EQ(squares.param, expected.param);
      EXPECT_EQ(squares.direction, expected.direction);
    }
  }
}

// As a gradient leaves: behind what the calling thread's stream has to do, into the GPU's memory.
TEST_F(DeviceKernelsOnGpu, SquaresOfOneRunAreLeftOnTheGpu) {
  constexpr int64_t kCount = 5'000;
  const std::vector<std::byte> gradient = RandomHalves(kCount);
  std::vector<std::byte> sums(NumNormBlocks(kCount) * sizeof(double));
  std::byte* const on_gpu = OnGpu(sums);
  ASSERT_OK(gpu_.BeginBlockSquares(ElementType::kFp16, {OnGpu(gradient), kCount},
                                   reinterpret_cast<double*>(on_gpu)));
  GEMINI_NEED(::cudaMemcpy(sums.data(), on_gpu, sums.size(), cudaMemcpyDeviceToHost));
  const GradientRun run = {gradient.data(), kCount};
  ASSERT_OK_AND_ASSIGN(const std::vector<double> expected,
                       host_.BlockSquaresOf(ElementType::kFp16, absl::MakeConstSpan(&run, 1)));
  ASSERT_EQ(expected.size() * sizeof(double), sums.size());
  EXPECT_EQ(std::memcmp(sums.data(), expected.data(), sums.size()), 0);
}

// The formulas: update_kernel_cuda_test.cc.
TEST_F(DeviceKernelsOnGpu, UpdatesInPlaceAreThoseOfTheHost) {
  constexpr int64_t kCount = 100'000;
  std::vector<std::byte> param = RandomHalves(kCount), grad = RandomHalves(kCount);
  std::vector<std::byte> master(4 * kCount), exp_avg(4 * kCount), exp_avg_sq(4 * kCount);
  const auto streams = [](std::byte* at_param, std::byte* at_master, std::byte* at_grad,
                          std::byte* m, std::byte* v) {
    return UpdateStreams{.param_type = ElementType::kFp16,
                         .grad_type = ElementType::kFp16,
                         .param = at_param,
                         .master = at_master,
                         .grad = at_grad,
                         .exp_avg = reinterpret_cast<float*>(m),
                         .exp_avg_sq = reinterpret_cast<float*>(v),
                         .new_param = at_param,
                         .new_master = at_master,
                         .new_exp_avg = reinterpret_cast<float*>(m),
                         .new_exp_avg_sq = reinterpret_cast<float*>(v)};
  };
  std::byte* const gpu_param = OnGpu(param);
  std::byte* const gpu_exp_avg_sq = OnGpu(exp_avg_sq);
  const UpdateStreams on_gpu =
      streams(gpu_param, OnGpu(master), OnGpu(grad), OnGpu(exp_avg), gpu_exp_avg_sq);
  const UpdateStreams on_host =
      streams(param.data(), master.data(), grad.data(), exp_avg.data(), exp_avg_sq.data());
  for (int64_t step = 1; step <= 3; ++step) {
    const UpdateSettings settings = {.step = step, .gradient_scale = 0.5};
    host_.Update(settings, on_host, kCount);
    gpu_.Update(settings, on_gpu, kCount);
  }
  ASSERT_OK(gpu_.Finish());
  const auto fetched = [](const std::byte* from, size_t size) {
    std::vector<std::byte> bytes(size);
    GEMINI_NEED(::cudaMemcpy(bytes.data(), from, size, cudaMemcpyDeviceToHost));
    return bytes;
  };
  EXPECT_EQ(fetched(gpu_param, param.size()), param);
  EXPECT_EQ(fetched(gpu_exp_avg_sq, exp_avg_sq.size()), exp_avg_sq);
}

}  // namespace
}  // namespace gemini::client
