// SPDX-License-Identifier: Apache-2.0
// How fast the copy engine moves chunks between a session's memory, which is files registered with
// the driver and slabs mapped from descriptors, as a part of what cudaMemcpyAsync does between
// memory that CUDA itself made.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/copy/copy_engine_cuda.h"
#include "client/copy/timeline_clock.h"
#include "client/device/device_slabs_cuda.h"
#include "gemini/byte_size.h"
#include "gtest/gtest.h"
#include "server/tiers/tier_store_cuda.h"
#include "tests/gpu/probe/memory_file.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/vmm_memory.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

constexpr int64_t kSlab = 256 * kMiB;
constexpr int kRounds = 9;
constexpr double kLeastPart = 0.9;

// One area a direction.
struct Areas {
  std::array<std::byte*, kNumCopyStreams> host = {};
  std::array<std::byte*, kNumCopyStreams> device = {};
};

class CopyEngineRateOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    probe::UseDevice();
    ASSERT_OK_AND_ASSIGN(const CudaDriver* const driver, CudaDriver::Find());
    ASSERT_OK_AND_ASSIGN(store_, server::MakeCudaTierStore(*driver, 0, 2 * kSlab, kSlab));
    ASSERT_OK_AND_ASSIGN(grant_, store_->Make(kSlab, 2));
    ASSERT_OK_AND_ASSIGN(
        slabs_,
        DeviceSlabsCuda::Reserve(
            *driver, 0,
            {.slab_bytes = kSlab, .num_slabs = 2, .gpu_uuid = *CudaDeviceUuid(*driver, 0)}));
    for (size_t i = 0; i < kNumCopyStreams; ++i) {
      ASSERT_OK(slabs_->Map(grant_.extents[i].fd.get()));
      ours_.device[i] = slabs_->data() + static_cast<int64_t>(i) * kSlab;
      const UniqueFd file = probe::NewMemoryFile(kSlab);
      probe::AllocateAsASlab(file, kSlab);
      files_[i] = std::make_unique<probe::FileMapping>(file, kSlab);
      ours_.host[i] = files_[i]->data();
      GEMINI_NEED(::cudaHostRegister(ours_.host[i], kSlab, cudaHostRegisterPortable));
      void* made = nullptr;
      GEMINI_NEED(::cudaMallocHost(&made, kSlab));
      plain_.host[i] = static_cast<std::byte*>(made);
      GEMINI_NEED(::cudaMalloc(&made, kSlab));
      plain_.device[i] = static_cast<std::byte*>(made);
      GEMINI_NEED(::cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking));
    }
    timeline_ = std::make_unique<TimelineShm>();
    ASSERT_OK_AND_ASSIGN(engine_, CopyEngineCuda::Make(*driver, {.timeline = timeline_.get()}));
  }
  void TearDown() override {
    engine_.reset();
    for (size_t i = 0; i < kNumCopyStreams; ++i) {
      ::cudaStreamDestroy(streams_[i]);
      ::cudaFreeHost(plain_.host[i]);
      ::cudaFree(plain_.device[i]);
      ::cudaHostUnregister(ours_.host[i]);
    }
    slabs_.reset();
    if (store_ != nullptr) store_->Destroy(std::move(grant_));
  }

  // Nanoseconds in which a slab goes each of the ways, by pieces of `size_bytes`.
  template <typename Enqueue, typename Wait>
  static int64_t Time(int64_t size_bytes, const std::vector<CopyStream>& ways, Enqueue enqueue,
                      Wait wait) {
    const int64_t begin_ns = TimelineNowNs();
    for (int64_t at = 0; at < kSlab; at += size_bytes) {
      for (const CopyStream way : ways) enqueue(way, at);
    }
    wait();
    return TimelineNowNs() - begin_ns;
  }
  int64_t TimeOfEngine(int64_t size_bytes, const std::vector<CopyStream>& ways) {
    CopyEvent last;
    return Time(
        size_bytes, ways,
        [&](CopyStream way, int64_t at) {
          const auto i = static_cast<size_t>(way);
          const bool in = way == CopyStream::kFetch;
          std::byte* const host = ours_.host[i] + at;
          std::byte* const device = ours_.device[i] + at;
          last.Join(engine_->Copy(way, in ? device : host, in ? host : device, size_bytes, {},
                                  {.space = 0, .chunk = 0}));
        },
        [&] { engine_->Wait(last); });
  }
  int64_t TimeOfPlain(int64_t size_bytes, const std::vector<CopyStream>& ways) {
    return Time(
        size_bytes, ways,
        [&](CopyStream way, int64_t at) {
          const auto i = static_cast<size_t>(way);
          const bool in = way == CopyStream::kFetch;
          std::byte* const host = plain_.host[i] + at;
          std::byte* const device = plain_.device[i] + at;
          GEMINI_NEED(::cudaMemcpyAsync(in ? device : host, in ? host : device,
                                        static_cast<size_t>(size_bytes), cudaMemcpyDefault,
                                        streams_[i]));
        },
        [&] {
          for (const cudaStream_t stream : streams_) GEMINI_NEED(::cudaStreamSynchronize(stream));
        });
  }

  std::unique_ptr<server::TierStore> store_;
  server::TierGrant grant_;
  std::unique_ptr<DeviceSlabsCuda> slabs_;
  std::array<std::unique_ptr<probe::FileMapping>, kNumCopyStreams> files_;
  Areas ours_, plain_;
  std::array<cudaStream_t, kNumCopyStreams> streams_ = {};
  std::unique_ptr<TimelineShm> timeline_;
  std::unique_ptr<CopyEngineCuda> engine_;
};

// In turns, for others use the link, too; the middle one of the ratios.
TEST_F(CopyEngineRateOnGpu, IsNearlyThatOfPlainCopies) {
  const std::vector<std::pair<const char*, std::vector<CopyStream>>> all_ways = {
      {"host to device", {CopyStream::kFetch}},
      {"device to host", {CopyStream::kEvict}},
      {"both at once", {CopyStream::kFetch, CopyStream::kEvict}}};
  for (const int64_t size_bytes : {4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    for (const auto& [name, ways] : all_ways) {
      TimeOfPlain(size_bytes, ways);
      TimeOfEngine(size_bytes, ways);
      std::vector<double> parts, plain_rates;
      for (int round = 0; round < kRounds; ++round) {
        const auto plain_ns = static_cast<double>(TimeOfPlain(size_bytes, ways));
        parts.push_back(plain_ns / static_cast<double>(TimeOfEngine(size_bytes, ways)));
        plain_rates.push_back(static_cast<double>(kSlab) / plain_ns);
      }
      std::ranges::nth_element(parts, parts.begin() + kRounds / 2);
      std::ranges::nth_element(plain_rates, plain_rates.begin() + kRounds / 2);
      probe::Answer("the copy engine's part of plain copies",
                    {{"way", name},
                     {"MiB", size_bytes / kMiB},
                     {"part", parts[kRounds / 2]},
                     {"plain_GB_per_second_each_way", plain_rates[kRounds / 2]}});
      EXPECT_GE(parts[kRounds / 2], kLeastPart) << name << ", " << FormatByteSize(size_bytes);
    }
  }
  EXPECT_OK(engine_->status());
}

}  // namespace
}  // namespace gemini::client
