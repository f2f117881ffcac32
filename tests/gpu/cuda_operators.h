// SPDX-License-Identifier: Apache-2.0
// Operators of a PlannedJob that are kernels, on a stream of their own.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/plan/job_operators.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/tagged_words.h"

namespace gemini::client {

class CudaOperators : public JobOperators {
 public:
  CudaOperators() {
    GEMINI_NEED(::cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    void* wrong = nullptr;
    GEMINI_NEED(::cudaMalloc(&wrong, kWrongBytes));
    wrong_ = static_cast<unsigned long long*>(wrong);
    GEMINI_NEED(::cudaMemsetAsync(wrong_, 0, kWrongBytes, stream_));
  }
  ~CudaOperators() override {
    Finish();
    GEMINI_NEED(::cudaFree(wrong_));
    GEMINI_NEED(::cudaStreamDestroy(stream_));
  }
  cudaStream_t stream() const { return stream_; }

  void Check(const std::byte* at, int64_t size_bytes, TaggedBytes bytes,
             std::string what) override {
    if (checks_.size() == kMaxChecks) Settle();
    GEMINI_NEED(CountWrongWords(reinterpret_cast<const uint64_t*>(at), size_bytes / 8,
                                bytes.word(0), Step(bytes), &wrong_[checks_.size()], stream_));
    checks_.push_back(std::move(what));
  }
  void Fill(std::byte* at, int64_t size_bytes, TaggedBytes bytes) override {
    GEMINI_NEED(FillTaggedWords(reinterpret_cast<uint64_t*>(at), size_bytes / 8, bytes.word(0),
                                Step(bytes), stream_));
  }
  std::byte* MakeBuffer(int64_t size_bytes) override {
    void* buffer = nullptr;
    GEMINI_NEED(::cudaMallocAsync(&buffer, static_cast<size_t>(size_bytes), stream_));
    buffers_.push_back(buffer);
    return static_cast<std::byte*>(buffer);
  }
  void Finish() override {
    Settle();
    for (void* const buffer : buffers_) GEMINI_NEED(::cudaFreeAsync(buffer, stream_));
    buffers_.clear();
  }
  bool may_be_late() const override { return true; }

 private:
  static constexpr size_t kMaxChecks = 4096;
  static constexpr size_t kWrongBytes = kMaxChecks * sizeof(unsigned long long);

  static uint64_t Step(TaggedBytes bytes) { return bytes.tag == 0 ? 0 : 1; }
  // Waits, and tells what the checks found.
  void Settle() {
    std::vector<unsigned long long> wrong(kMaxChecks);
    GEMINI_NEED(
        ::cudaMemcpyAsync(wrong.data(), wrong_, kWrongBytes, cudaMemcpyDeviceToHost, stream_));
    GEMINI_NEED(::cudaMemsetAsync(wrong_, 0, kWrongBytes, stream_));
    GEMINI_NEED(::cudaStreamSynchronize(stream_));
    for (size_t i = 0; i < checks_.size(); ++i) EXPECT_EQ(wrong[i], 0) << checks_[i];
    checks_.clear();
  }

  cudaStream_t stream_ = nullptr;
  unsigned long long* wrong_ = nullptr;  // On the GPU, by check: words that were others.
  std::vector<std::string> checks_;      // What each is about.
  std::vector<void*> buffers_;
};

}  // namespace gemini::client
