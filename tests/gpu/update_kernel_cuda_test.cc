// SPDX-License-Identifier: Apache-2.0
// Updates and norms on a real GPU: the bits of the CPU's, and how near they come to the memory's
// speed.
#include "client/kernels/update_kernel_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "client/kernels/grad_norm_cuda.h"
#include "gtest/gtest.h"
#include "tests/client/update/update_memory.h"
#include "tests/gpu/probe/probe.h"

namespace gemini::client {
namespace {

// Memory of the GPU, at a multiple of 256 bytes.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t size_bytes) {
    GEMINI_NEED(::cudaMalloc(&address_, static_cast<size_t>(std::max<int64_t>(size_bytes, 1))));
  }
  DeviceMemory(DeviceMemory&& other) noexcept : address_(std::exchange(other.address_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory() { ::cudaFree(address_); }
  std::byte* data() const { return static_cast<std::byte*>(address_); }

 private:
  void* address_ = nullptr;
};

// The streams of an UpdateMemory in memory of the GPU, each `shift` elements behind a multiple of
// 256 bytes, with guards around them. An output that is its input on the host is so there.
class DeviceStreams {
 public:
  DeviceStreams(const UpdateStreams& host, int64_t count, int64_t shift, int64_t grad_shift)
      : host_(host), device_(host), count_(count) {
    const int64_t param_bytes = ElementBytes(host.param_type);
    const int64_t master_bytes = MasterBytes(host.param_type);
    device_.param = Take(host.param, param_bytes, shift);
    device_.master = Take(host.master, master_bytes, shift);
    device_.grad = Take(host.grad, ElementBytes(host.grad_type), grad_shift);
    device_.exp_avg = reinterpret_cast<float*>(Take(host.exp_avg, 4, shift));
    device_.exp_avg_sq = reinterpret_cast<float*>(Take(host.exp_avg_sq, 4, shift));
    device_.new_param = Take(host.new_param, param_bytes, shift);
    device_.new_master = Take(host.new_master, master_bytes, shift);
    device_.new_exp_avg = reinterpret_cast<float*>(Take(host.new_exp_avg, 4, shift));
    device_.new_exp_avg_sq = reinterpret_cast<float*>(Take(host.new_exp_avg_sq, 4, shift));
  }

  const UpdateStreams& streams() const { return device_; }
  // Brings everything back, guards included: what lies around a stream of an UpdateMemory is its
  // guard there, too.
  void Fetch() const {
    for (const auto& [host, copy] : copies_) {
      GEMINI_NEED(::cudaMemcpy(host - kGuardBytes, copy.address,
                               static_cast<size_t>(copy.size_bytes), cudaMemcpyDeviceToHost));
    }
  }

 private:
  static constexpr int64_t kGuardBytes = 256;  // As UpdateMemory has.
  struct Copy {
    DeviceMemory memory;
    std::byte* address = nullptr;  // Of the guard in front.
    int64_t size_bytes = 0;
  };

  std::byte* Take(const void* stream, int64_t element_bytes, int64_t shift) {
    if (stream == nullptr) return nullptr;
    auto* const host = static_cast<std::byte*>(const_cast<void*>(stream));
    auto found = copies_.find(host);
    if (found == copies_.end()) {
      const int64_t size_bytes = count_ * element_bytes + 2 * kGuardBytes;
      DeviceMemory memory(size_bytes + shift * element_bytes);
      std::byte* const address = memory.data() + shift * element_bytes;
      GEMINI_NEED(::cudaMemcpy(address, host - kGuardBytes, static_cast<size_t>(size_bytes),
                               cudaMemcpyHostToDevice));
      found = copies_.emplace(host, Copy{std::move(memory), address, size_bytes}).first;
    }
    return found->second.address + kGuardBytes;
  }

  const UpdateStreams host_;
  UpdateStreams device_;
  const int64_t count_;
  std::map<std::byte*, Copy> copies_;  // By their stream on the host.
};

class UpdateOnGpu : public ::testing::TestWithParam<UpdateFormats> {
 protected:
  static UpdateMemory Memory(const std::vector<ElementBits>& values) {
    return UpdateMemory(std::get<1>(GetParam()), std::get<2>(GetParam()), values);
  }
  static std::vector<ElementBits> ManyElements() {
    std::vector<ElementBits> values = SpecialElements();
    const std::vector<ElementBits> random = RandomElements(30'033, /*seed=*/13);
    values.insert(values.end(), random.begin(), random.end());
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(All, UpdateOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kAllOptimizerKinds),
                                            ::testing::ValuesIn(kAllElementTypes),
                                            ::testing::ValuesIn(kAllElementTypes)),
                         NameOfFormats);

struct Shift {
  int64_t all, grad;
};

TEST_P(UpdateOnGpu, ItsBitsAreTheCpus) {
  const std::vector<ElementBits> many = ManyElements();
  for (const size_t count : {size_t{1}, size_t{3}, size_t{4}, size_t{5}, many.size()}) {
    const std::vector<ElementBits> values(many.end() - static_cast<int64_t>(count), many.end());
    for (const int64_t step : {1, 7}) {
      const UpdateSettings settings = SettingsOf(std::get<0>(GetParam()), step);
      UpdateMemory expected = Memory(values);
      UpdateElements(settings, expected.OutOfPlace(), expected.count());
      // Where one stream alone is not aligned, no run of elements is.
      for (const Shift shift : {Shift{0, 0}, Shift{3, 3}, Shift{0, 1}}) {
        UpdateMemory memory = Memory(values);
        const DeviceStreams device(memory.OutOfPlace(), memory.count(), shift.all, shift.grad);
        GEMINI_NEED(EnqueueUpdate(settings, device.streams(), memory.count(), nullptr));
        device.Fetch();
        EXPECT_TRUE(memory.WrittenOutOfPlace() == expected.WrittenOutOfPlace())
            << count << " elements, step " << step << ", shift " << shift.all << shift.grad;
      }
    }
  }
}

TEST_P(UpdateOnGpu, InPlaceGivesTheBitsOfOutOfPlace) {
  const UpdateSettings settings = SettingsOf(std::get<0>(GetParam()));
  const std::vector<ElementBits> values = ManyElements();
  UpdateMemory expected = Memory(values);
  UpdateElements(settings, expected.OutOfPlace(), expected.count());
  UpdateMemory memory = Memory(values);
  const DeviceStreams device(memory.InPlace(), memory.count(), 0, 0);
  GEMINI_NEED(EnqueueUpdate(settings, device.streams(), memory.count(), nullptr));
  device.Fetch();
  const bool has_second_moment = HasSecondMoment(settings.kind);
  EXPECT_TRUE(memory.WrittenInPlace(has_second_moment) ==
              expected.WrittenOutOfPlace(has_second_moment));
}

TEST_P(UpdateOnGpu, MomentsThatAreNoneAreZeros) {
  const UpdateSettings settings = SettingsOf(std::get<0>(GetParam()), /*step=*/1);
  const std::vector<ElementBits> values = ManyElements();
  const auto without_moments = [](UpdateMemory& memory) {
    UpdateStreams streams = memory.OutOfPlace();
    streams.exp_avg = nullptr;
    streams.exp_avg_sq = nullptr;
    return streams;
  };
  UpdateMemory expected = Memory(values);
  UpdateElements(settings, without_moments(expected), expected.count());
  UpdateMemory memory = Memory(values);
  const DeviceStreams device(without_moments(memory), memory.count(), 0, 0);
  GEMINI_NEED(EnqueueUpdate(settings, device.streams(), memory.count(), nullptr));
  device.Fetch();
  EXPECT_TRUE(memory.WrittenOutOfPlace() == expected.WrittenOutOfPlace());
}

class NormOnGpu : public ::testing::TestWithParam<ElementType> {};

INSTANTIATE_TEST_SUITE_P(All, NormOnGpu, ::testing::ValuesIn(kAllElementTypes));

TEST_P(NormOnGpu, ItsBitsAreTheCpus) {
  for (const int64_t count : {1, 7, 1'023, 1'024, 1'025, 40'000, 5'000'003}) {
    UpdateMemory memory(ElementType::kFp32, GetParam(), RandomElements(count, /*seed=*/17));
    if (count > 2'000) memory.SetGrad(1'500, std::nanf(""));
    const UpdateStreams streams = memory.OutOfPlace();
    const int64_t num_blocks = NumNormBlocks(count);
    std::vector<double> expected(static_cast<size_t>(num_blocks));
    BlockSquares(GetParam(), streams.grad, count, expected.data());
    const DeviceStreams device(streams, count, /*shift=*/0, /*grad_shift=*/count % 3);
    const DeviceMemory sums(num_blocks * 8);
    GEMINI_NEED(EnqueueBlockSquares(GetParam(), device.streams().grad, count,
                                    reinterpret_cast<double*>(sums.data()), nullptr));
    std::vector<double> got(expected.size());
    GEMINI_NEED(::cudaMemcpy(got.data(), sums.data(), got.size() * 8, cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 8), 0) << count;
  }
}

// The median of the GPU's milliseconds for `work`.
double Milliseconds(const std::function<void()>& work) {
  std::vector<double> times;
  for (int round = 0; round < 12; ++round) {
    cudaEvent_t begin, end;
    GEMINI_NEED(::cudaEventCreate(&begin));
    GEMINI_NEED(::cudaEventCreate(&end));
    GEMINI_NEED(::cudaEventRecord(begin, nullptr));
    work();
    GEMINI_NEED(::cudaEventRecord(end, nullptr));
    GEMINI_NEED(::cudaEventSynchronize(end));
    float milliseconds = 0;
    GEMINI_NEED(::cudaEventElapsedTime(&milliseconds, begin, end));
    GEMINI_NEED(::cudaEventDestroy(begin));
    GEMINI_NEED(::cudaEventDestroy(end));
    if (round >= 2) times.push_back(milliseconds);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// No bar: the rates go into docs/benchmarks.md.
TEST(RateOnGpu, OfUpdatesAndNormsAgainstCopies) {
  constexpr int64_t kCount = int64_t{128} << 20;
  UpdateStreams streams = {.param_type = ElementType::kBf16, .grad_type = ElementType::kBf16};
  std::vector<DeviceMemory> memory;
  const auto make = [&](int64_t element_bytes) {
    memory.emplace_back(kCount * element_bytes);
    GEMINI_NEED(::cudaMemset(memory.back().data(), 0, static_cast<size_t>(kCount * element_bytes)));
    return memory.back().data();
  };
  streams.new_param = make(2);
  streams.new_master = make(2);
  streams.grad = make(2);
  streams.new_exp_avg = reinterpret_cast<float*>(make(4));
  streams.new_exp_avg_sq = reinterpret_cast<float*>(make(4));
  streams.param = streams.new_param;
  streams.master = streams.new_master;
  streams.exp_avg = streams.new_exp_avg;
  streams.exp_avg_sq = streams.new_exp_avg_sq;
  const std::byte* const from = make(4);
  std::byte* const to = make(4);
  const UpdateSettings settings = SettingsOf(OptimizerKind::kAdamW);
  // Reads 14 bytes an element and writes 12, in place.
  const double update_ms =
      Milliseconds([&] { GEMINI_NEED(EnqueueUpdate(settings, streams, kCount, nullptr)); });
  const double norm_ms = Milliseconds([&] {
    GEMINI_NEED(EnqueueBlockSquares(ElementType::kBf16, streams.grad, kCount,
                                    reinterpret_cast<double*>(to), nullptr));
  });
  const double copy_ms = Milliseconds([&] {
    GEMINI_NEED(::cudaMemcpyAsync(to, from, kCount * 4, cudaMemcpyDeviceToDevice, nullptr));
  });
  const auto gb_per_second = [](double bytes, double ms) { return bytes / ms / 1e6; };
  const double copy_rate = gb_per_second(kCount * 8.0, copy_ms);
  probe::Answer(
      "GB/s of bf16 AdamW in place, 128 M elements, by the bytes that it reads and writes",
      {{"update", gb_per_second(kCount * 26.0, update_ms)},
       {"norm", gb_per_second(kCount * 2.0, norm_ms)},
       {"cudaMemcpy", copy_rate},
       {"update_fraction", gb_per_second(kCount * 26.0, update_ms) / copy_rate}});
}

}  // namespace
}  // namespace gemini::client
