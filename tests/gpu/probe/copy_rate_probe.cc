// SPDX-License-Identifier: Apache-2.0
// How fast pinned memory moves to the device and back, by the size of a copy, alone and both ways
// at once, one by one and in batches; and what a copy costs the thread that enqueues it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/timing.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;
constexpr size_t kArea = 1024 * kMiB;
constexpr size_t kBatch = 64;
constexpr int kRepetitions = 25;

enum class Direction { kToDevice, kFromDevice };

// Each direction has a stream and an area of its own.
class Copies {
 public:
  Copies() {
    void* host = nullptr;
    void* device = nullptr;
    GEMINI_NEED(::cudaMallocHost(&host, 2 * kArea));
    GEMINI_NEED(::cudaMalloc(&device, 2 * kArea));
    host_ = static_cast<std::byte*>(host);
    device_ = static_cast<std::byte*>(device);
    for (cudaStream_t* stream : {&in_, &out_}) {
      GEMINI_NEED(::cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
  }

  // Copies `total` bytes by pieces of `size` in each of the directions. GB/s of one direction.
  nlohmann::json Rate(size_t total, size_t size, const std::vector<Direction>& directions) {
    const std::vector<double> times = Microseconds(kRepetitions, [&] {
      for (size_t at = 0; at < total; at += size) {
        for (const Direction direction : directions) Enqueue(at, size, direction);
      }
      Wait();
    });
    return GigabytesPerSecond(static_cast<double>(total), times);
  }

  // The same of one direction, in batches.
  nlohmann::json BatchRate(size_t num_batches, size_t size, Direction direction) {
    const std::vector<double> times = Microseconds(kRepetitions, [&] {
      for (size_t i = 0; i < num_batches; ++i) EnqueueBatch(i * kBatch * size, size, direction);
      Wait();
    });
    return GigabytesPerSecond(static_cast<double>(num_batches * kBatch * size), times);
  }

  // What a thread spends on enqueueing a batch's copies behind none, one by one or as a batch.
  nlohmann::json EnqueueMicroseconds(size_t size, Direction direction, bool as_a_batch) {
    return Percentiles(Microseconds(
        kRepetitions,
        [&] {
          if (as_a_batch) {
            EnqueueBatch(0, size, direction);
          } else {
            for (size_t i = 0; i < kBatch; ++i) Enqueue(i * size, size, direction);
          }
        },
        [this] { Wait(); }));
  }

 private:
  void Enqueue(size_t at, size_t size, Direction direction) {
    if (direction == Direction::kToDevice) {
      GEMINI_NEED(::cudaMemcpyAsync(device_ + at, host_ + at, size, cudaMemcpyHostToDevice, in_));
    } else {
      GEMINI_NEED(::cudaMemcpyAsync(host_ + kArea + at, device_ + kArea + at, size,
                                    cudaMemcpyDeviceToHost, out_));
    }
  }

  void EnqueueBatch(size_t at, size_t size, Direction direction) {
    const bool in = direction == Direction::kToDevice;
    std::vector<void*> to;
    std::vector<const void*> from;
    for (size_t i = 0; i < kBatch; ++i) {
      std::byte* const host = host_ + (in ? 0 : kArea) + at + i * size;
      std::byte* const device = device_ + (in ? 0 : kArea) + at + i * size;
      to.push_back(in ? device : host);
      from.push_back(in ? host : device);
    }
    const std::vector<size_t> sizes(kBatch, size);
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    GEMINI_NEED(::cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), kBatch, &attributes,
                                       &first, 1, in ? in_ : out_));
  }

  void Wait() {
    GEMINI_NEED(::cudaStreamSynchronize(in_));
    GEMINI_NEED(::cudaStreamSynchronize(out_));
  }

  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  cudaStream_t in_ = nullptr;
  cudaStream_t out_ = nullptr;
};

int Main() {
  NeedGpu();
  UseDevice();
  cudaDeviceProp properties = {};
  GEMINI_NEED(::cudaGetDeviceProperties(&properties, 0));
  Answer("the device's engines", {{"copy_engines", properties.asyncEngineCount},
                                  {"multiprocessors", properties.multiProcessorCount}});
  Copies copies;
  const std::vector<Direction> in = {Direction::kToDevice};
  const std::vector<Direction> out = {Direction::kFromDevice};
  const std::vector<Direction> both = {Direction::kToDevice, Direction::kFromDevice};
  copies.Rate(kArea, 64 * kMiB, both);  // What the first copies set up.
  for (const size_t kibibytes : {64, 256, 1024, 4096, 8192, 16384, 65536}) {
    const size_t size = kibibytes * kKiB;
    const size_t total = std::min(kArea, size * 1024);
    Answer(absl::StrCat("GB/s of copies of ", kibibytes, " KiB"),
           {{"to_device", copies.Rate(total, size, in)},
            {"from_device", copies.Rate(total, size, out)},
            {"each_of_both", copies.Rate(total, size, both)}});
  }
  for (const size_t kibibytes : {4, 16, 32, 64, 256}) {
    const size_t size = kibibytes * kKiB;
    constexpr size_t kNumBatches = 16;
    const size_t total = kNumBatches * kBatch * size;
    Answer(
        absl::StrCat("GB/s of small copies, of ", kibibytes, " KiB"),
        {{"to_device", copies.Rate(total, size, in)},
         {"to_device_in_batches_of_64", copies.BatchRate(kNumBatches, size, Direction::kToDevice)},
         {"from_device", copies.Rate(total, size, out)},
         {"from_device_in_batches_of_64",
          copies.BatchRate(kNumBatches, size, Direction::kFromDevice)}});
  }
  for (const size_t kibibytes : {16, 4096}) {
    const size_t size = kibibytes * kKiB;
    constexpr Direction kIn = Direction::kToDevice;
    constexpr Direction kOut = Direction::kFromDevice;
    Answer(absl::StrCat("us of the thread that enqueues 64 copies of ", kibibytes, " KiB"),
           {{"to_device", copies.EnqueueMicroseconds(size, kIn, /*as_a_batch=*/false)},
            {"to_device_as_a_batch", copies.EnqueueMicroseconds(size, kIn, true)},
            {"from_device", copies.EnqueueMicroseconds(size, kOut, false)},
            {"from_device_as_a_batch", copies.EnqueueMicroseconds(size, kOut, true)}});
  }
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
