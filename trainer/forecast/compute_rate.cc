// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/compute_rate.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>

#include "ATen/core/CachingHostAllocator.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "gemini/byte_size.h"
#include "torch/types.h"

namespace gemini::trainer {
namespace {

// How large the operators are that are timed.
struct Sizes {
  int64_t width;            // The matrices of a product are square.
  int64_t elements;         // A sum has so many, of fp32.
  int64_t kernels_in_turn;  // One is waited for with the others, as in a step.
};
constexpr Sizes kOfCpu = {.width = 512, .elements = 2 << 20, .kernels_in_turn = 1};
// Sums that no cache holds, however few ranks share it: those of 8 MiB were ten times as fast as a
// step's.
constexpr Sizes kOfSharedCpu = {.width = 512, .elements = 16 << 20, .kernels_in_turn = 1};
// Products that fill a large GPU, and sums that its caches do not hold.
constexpr Sizes kOfGpu = {.width = 2048, .elements = 16 << 20, .kernels_in_turn = 16};
// A sum in HOST has so many elements of fp32, which no cache of a server's processors holds. Where
// one did, updates were foretold to be ten times as fast as they were.
constexpr int64_t kHostElements = 32 << 20;

// For how long an operator runs again and again, and what is taken of its runs.
struct Timing {
  std::chrono::milliseconds time;
  bool takes_mean = false;
};
// The fastest run: others' work and first touches only slow them. Where another process had one of
// two processors, products of some milliseconds in all were ten times as slow.
constexpr Timing kFastest = {std::chrono::milliseconds(50)};
// An operator of 16 elements takes microseconds and no second processor.
constexpr Timing kFastestKernel = {std::chrono::milliseconds(5)};
// The mean, over many of the slices of time in which processes get a processor.
constexpr Timing kMean = {std::chrono::milliseconds(400), /*takes_mean=*/true};

template <typename Work>
double SecondsOf(c10::Device device, int64_t in_turn, Work&& work, const Timing& timing) {
  constexpr int kLeastRuns = 8;
  const auto finish = [device] {
    if (device.is_cpu()) return;
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  double least = 1e9, sum = 0;
  int run = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (; run < kLeastRuns || std::chrono::steady_clock::now() - begin < timing.time; ++run) {
    finish();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < in_turn; ++i) work();
    finish();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const double seconds = taken.count() / static_cast<double>(in_turn);
    least = std::min(least, seconds);
    sum += seconds;
  }
  return std::max(timing.takes_mean ? sum / run : least, 1e-9);
}

// Returns how long a sum of two tensors of so many elements takes.
double SecondsOfSum(c10::Device device, int64_t elements, int64_t in_turn, const Timing& timing) {
  const torch::Tensor from = torch::ones({elements}, torch::device(device));
  torch::Tensor to = torch::zeros({elements}, torch::device(device));
  return SecondsOf(
      device, in_turn, [&] { torch::add_out(to, from, from); }, timing);
}

ComputeRate Measure(c10::Device device, c10::ScalarType type, const Sizes& sizes,
                    const Timing& timing, const Timing& of_kernel) {
  const auto options = torch::dtype(type).device(device);
  const auto [width, elements, in_turn] = sizes;
  ComputeRate rate;
  {
    const torch::Tensor a = torch::ones({width, width}, options);
    const torch::Tensor b = torch::ones({width, width}, options);
    torch::Tensor product = torch::zeros({width, width}, options);
    const double seconds = SecondsOf(
        device, in_turn, [&] { torch::mm_out(product, a, b); }, timing);
    const auto side = static_cast<double>(width);
    rate.flops_per_second = 2 * side * side * side / seconds;
  }
  // Both inputs are one tensor. A CPU reads what it will write, too.
  const double bytes = (device.is_cuda() ? 2.0 : 3.0) * sizeof(float);
  rate.memory_bytes_per_second =
      bytes * static_cast<double>(elements) / SecondsOfSum(device, elements, in_turn, timing);
  rate.kernel_ns =
      static_cast<int64_t>(SecondsOfSum(device, /*elements=*/16, in_turn, of_kernel) * 1e9);
  return rate;
}

// Returns the rate of the products of causal attention on the CPU, as the forecast counts them
// (kernel_work.h): those of small blocks take two to three times as long as those of matrices.
double RateOfAttention(const Timing& timing) {
  constexpr int64_t kBatch = 2, kHeads = 6, kSequence = 256, kHeadSize = 64;
  const torch::Tensor heads = torch::ones({kBatch, kHeads, kSequence, kHeadSize});
  // By its name, as models do.
  const double seconds = SecondsOf(
      torch::kCPU, /*in_turn=*/1,
      [&] {
        at::_scaled_dot_product_flash_attention_for_cpu(heads, heads, heads, /*dropout_p=*/0,
                                                        /*is_causal=*/true);
      },
      timing);
  constexpr double kProducts = 2;
  return kProducts * static_cast<double>(heads.numel() * kSequence) / seconds;
}

// Bytes a second from pinned memory to the GPU, and back.
void MeasureLink(c10::Device gpu, CostModel& costs) {
  const int64_t size_bytes = 16 * kMiB;
  const auto bytes = torch::dtype(torch::kByte);
  torch::Tensor host = torch::zeros({size_bytes}, bytes.pinned_memory(true));
  torch::Tensor device = torch::zeros({size_bytes}, bytes.device(gpu));
  const auto rate = [&](torch::Tensor& to, const torch::Tensor& from) {
    return static_cast<double>(size_bytes) /
           SecondsOf(
               gpu, /*in_turn=*/4, [&] { to.copy_(from, /*non_blocking=*/true); }, kFastest);
  };
  costs.host_to_device = rate(device, host);
  costs.device_to_host = rate(host, device);
  costs.copy_latency_ns = kGpuCopyLatencyNs;
}

}  // namespace

ComputeRate MeasureComputeRate() {
  const torch::NoGradGuard no_grad;
  ComputeRate rate = Measure(torch::kCPU, torch::kFloat, kOfCpu, kFastest, kFastestKernel);
  rate.attention_flops_per_second = RateOfAttention(kFastest);
  return rate;
}

ComputeRate MeasureSharedComputeRate() {
  const torch::NoGradGuard no_grad;
  ComputeRate rate = Measure(torch::kCPU, torch::kFloat, kOfSharedCpu, kMean, kMean);
  rate.attention_flops_per_second = RateOfAttention(kMean);
  return rate;
}

absl::StatusOr<GpuRates> MeasureGpuRates(c10::Device gpu, c10::ScalarType type) {
  const auto failed = [gpu](const char* why) {
    return absl::UnavailableError(
        absl::StrCat("what ", gpu.str(), " computes a second cannot be measured: ", why));
  };
  const torch::NoGradGuard no_grad;
  GpuRates rates;
  double host_seconds = 1;
  try {
    host_seconds = SecondsOfSum(torch::kCPU, kHostElements, /*in_turn=*/1, kFastest);
    rates.compute = Measure(gpu, type, kOfGpu, kFastest, kFastestKernel);
    MeasureLink(gpu, rates.costs);
    at::getHostAllocator(gpu.type())->empty_cache();
  } catch (const c10::Error& error) {
    return failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(error.what());
  }
  rates.costs.device_update_elements_per_second =
      rates.compute.memory_bytes_per_second / kBytesAnUpdate;
  // Updates write past the caches.
  rates.costs.update_elements_per_second =
      2.0 * sizeof(float) * kHostElements / host_seconds / kBytesAnUpdate;
  return rates;
}

}  // namespace gemini::trainer
