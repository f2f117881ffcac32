// SPDX-License-Identifier: Apache-2.0
// How fast pinned memory moves to the device and back, by the size of a copy, alone and both ways at once, one by
// one and in batches; and what a copy costs the thread that enqueues it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;
constexpr size_t kArea = 1024 * kMiB;
constexpr int kRepetitions = 9;

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

  // Copies `total` bytes by pieces of `size` to the device, from it, or both at once. GB/s of one direction.
  double Rate(size_t total, size_t size, bool in, bool out) {
    const double us = MedianMicroseconds(kRepetitions, [&] {
      for (size_t at = 0; at < total; at += size) {
        if (in) {
          GEMINI_NEED(
              ::cudaMemcpyAsync(device_ + at, host_ + at, size, cudaMemcpyHostToDevice, in_));
        }
        if (out) {
          GEMINI_NEED(::cudaMemcpyAsync(host_ + kArea + at, device_ + kArea + at, size,
                                        cudaMemcpyDeviceToHost, out_));
        }
      }
      Wait();
    });
    return static_cast<double>(total) / us / 1e3;
  }

  // The same to the device, in batches of `count` pieces.
  double BatchRate(size_t total, size_t size, size_t count) {
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    std::vector<void*> to(count);
    std::vector<const void*> from(count);
    const std::vector<size_t> sizes(count, size);
    const double us = MedianMicroseconds(kRepetitions, [&] {
      for (size_t at = 0; at + size * count <= total;) {
        for (size_t i = 0; i < count; ++i, at += size) {
          to[i] = device_ + at;
          from[i] = host_ + at;
        }
        GEMINI_NEED(::cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, &attributes,
                                           &first, 1, in_));
      }
      Wait();
    });
    return static_cast<double>(total) / us / 1e3;
  }

  // Microseconds that a thread spends on enqueueing one copy of `size`, behind none.
  double EnqueueMicroseconds(size_t size) {
    constexpr int kCopies = 100;
    const double us = MedianMicroseconds(kRepetitions, [&] {
      for (size_t i = 0; i < kCopies; ++i) {
        GEMINI_NEED(::cudaMemcpyAsync(device_ + i * size, host_ + i * size, size,
                                      cudaMemcpyHostToDevice, in_));
      }
    });
    Wait();
    return us / kCopies;
  }

 private:
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
  Answer("device", {{"name", properties.name},
                    {"copy_engines", properties.asyncEngineCount},
                    {"multiprocessors", properties.multiProcessorCount},
                    {"bytes", properties.totalGlobalMem}});
  Copies copies;
  copies.Rate(kArea, 64 * kMiB, true, true);  // What the first copies set up.
  for (const size_t kibibytes : {64, 256, 1024, 4096, 8192, 16384, 65536}) {
    const size_t size = kibibytes * kKiB;
    const size_t total = std::min(kArea, size * 1024);
    Answer(absl::StrCat("GB/s of copies of ", kibibytes, " KiB"),
           {{"to_device", copies.Rate(total, size, true, false)},
            {"from_device", copies.Rate(total, size, false, true)},
            {"each_of_both", copies.Rate(total, size, true, true)}});
  }
  for (const size_t kibibytes : {4, 16, 32, 64, 256}) {
    const size_t size = kibibytes * kKiB;
    Answer(absl::StrCat("GB/s of copies of ", kibibytes, " KiB to the device"),
           {{"one_by_one", copies.Rate(size * 1024, size, true, false)},
            {"in_batches_of_64", copies.BatchRate(size * 1024, size, 64)}});
  }
  Answer("us of the enqueueing thread, a copy of 4 MiB", copies.EnqueueMicroseconds(4 * kMiB));
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
