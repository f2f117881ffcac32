// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/cuda/CUDAStream.h"
#include "client/copy/cuda_call_scope.h"
#include "client/copy/cuda_status.h"
#include "gemini/byte_size.h"
#include "gemini/system/cuda_driver.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/exact_sum_cuda.h"
#include "trainer/parallel/exchange_gpu.h"

namespace gemini::trainer {
namespace {

using client::CudaCallScope;
using client::CudaRuntimeStatus;

// A GPU, shared by everything that is made on it.
struct Gpu {
  const CudaDriver& driver;
  const int ordinal;
  CudaCallScope Scope() const { return {driver, ordinal}; }
  // The calling thread's.
  cudaStream_t Operators() const {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(ordinal)).stream();
  }
};

class GpuPoint final : public StreamPoint {
 public:
  static absl::StatusOr<std::shared_ptr<GpuPoint>> Record(const Gpu& gpu, cudaStream_t stream) {
    const CudaCallScope scope = gpu.Scope();
    cudaEvent_t event = nullptr;
    GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(
        ::cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    auto made = std::shared_ptr<GpuPoint>(new GpuPoint(gpu, event));
    GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(::cudaEventRecord(event, stream), "cudaEventRecord"));
    return made;
  }
  ~GpuPoint() override {
    const CudaCallScope scope = gpu_.Scope();
    ::cudaEventDestroy(event_);
  }
  absl::Status MakeOperatorsWait() override { return MakeWait(gpu_.Operators()); }
  absl::Status MakeWait(cudaStream_t stream) {
    const CudaCallScope scope = gpu_.Scope();
    return CudaRuntimeStatus(::cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  absl::StatusOr<bool> Reached() override {
    const CudaCallScope scope = gpu_.Scope();
    const cudaError_t result = ::cudaEventQuery(event_);
    if (result == cudaErrorNotReady) {
      ::cudaGetLastError();  // Else somebody takes it for an error of theirs.
      return false;
    }
    GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(result, "an exchange of ranks"));
    return true;
  }

 private:
  GpuPoint(const Gpu& gpu, cudaEvent_t event) : gpu_(gpu), event_(event) {}
  const Gpu gpu_;
  const cudaEvent_t event_;
};

class GpuMemory final : public ExchangeMemory {
 public:
  GpuMemory(const Gpu& gpu, void* bytes, bool is_host)
      : gpu_(gpu), bytes_(bytes), is_host_(is_host) {}
  ~GpuMemory() override {
    const CudaCallScope scope = gpu_.Scope();
    if (is_host_) {
      ::cudaFreeHost(bytes_);
    } else {
      ::cudaFree(bytes_);
    }
  }
  std::byte* bytes() const override { return static_cast<std::byte*>(bytes_); }

 private:
  const Gpu gpu_;
  void* const bytes_;
  const bool is_host_;
};

class GpuStream final : public ExchangeStream {
 public:
  GpuStream(const Gpu& gpu, cudaStream_t stream) : gpu_(gpu), stream_(stream) {}
  ~GpuStream() override {
    const CudaCallScope scope = gpu_.Scope();
    ::cudaStreamDestroy(stream_);  // What is enqueued still runs.
  }
  void* handle() const override { return stream_; }
  absl::Status AwaitOperators() override {
    GEMINI_ASSIGN_OR_RETURN(const std::shared_ptr<GpuPoint> point,
                            GpuPoint::Record(gpu_, gpu_.Operators()));
    return point->MakeWait(stream_);
  }
  absl::StatusOr<std::shared_ptr<StreamPoint>> Mark() override {
    return GpuPoint::Record(gpu_, stream_);
  }
  absl::Status Copy(std::byte* to, const std::byte* from, int64_t size_bytes) override {
    const CudaCallScope scope = gpu_.Scope();
    return CudaRuntimeStatus(
        ::cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDefault, stream_),
        "cudaMemcpyAsync");
  }
  absl::Status Fold(SumType type, const std::byte* parts, int64_t num_parts, int64_t elements,
                    std::byte* sum) override {
    const CudaCallScope scope = gpu_.Scope();
    return CudaRuntimeStatus(FoldSumCuda(type, parts, num_parts, elements, sum, stream_),
                             "a sum of ranks' values");
  }

 private:
  const Gpu gpu_;
  const cudaStream_t stream_;
};

class GpuExchange final : public ExchangeDevice {
 public:
  explicit GpuExchange(const Gpu& gpu) : gpu_(gpu) {}

  absl::Status Use() override {
    return CudaRuntimeStatus(::cudaSetDevice(gpu_.ordinal), "cudaSetDevice");
  }
  absl::StatusOr<std::unique_ptr<ExchangeStream>> MakeStream() override {
    const CudaCallScope scope = gpu_.Scope();
    int least = 0;
    int most = 0;
    GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(::cudaDeviceGetStreamPriorityRange(&least, &most),
                                             "cudaDeviceGetStreamPriorityRange"));
    cudaStream_t stream = nullptr;
    // What other ranks wait for comes before operators.
    GEMINI_RETURN_IF_ERROR(
        CudaRuntimeStatus(::cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most),
                          "cudaStreamCreateWithPriority"));
    return std::make_unique<GpuStream>(gpu_, stream);
  }
  absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeDeviceMemory(int64_t size_bytes) override {
    const CudaCallScope scope = gpu_.Scope();
    void* bytes = nullptr;
    const cudaError_t result = ::cudaMalloc(&bytes, static_cast<size_t>(size_bytes));
    return Made(result, bytes, size_bytes, "cudaMalloc", /*is_host=*/false);
  }
  absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeHostMemory(int64_t size_bytes) override {
    const CudaCallScope scope = gpu_.Scope();
    void* bytes = nullptr;
    const cudaError_t result =
        ::cudaHostAlloc(&bytes, static_cast<size_t>(size_bytes), cudaHostAllocDefault);
    return Made(result, bytes, size_bytes, "cudaHostAlloc", /*is_host=*/true);
  }
  bool IsDeviceMemory(const void* bytes) override {
    const CudaCallScope scope = gpu_.Scope();
    cudaPointerAttributes attributes = {};
    if (::cudaPointerGetAttributes(&attributes, bytes) != cudaSuccess) {
      ::cudaGetLastError();
      return false;
    }
    return attributes.type == cudaMemoryTypeDevice && attributes.device == gpu_.ordinal;
  }

 private:
  absl::StatusOr<std::shared_ptr<ExchangeMemory>> Made(cudaError_t result, void* bytes,
                                                       int64_t size_bytes, absl::string_view call,
                                                       bool is_host) const {
    if (result != cudaSuccess) ::cudaGetLastError();
    GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(
        result, absl::StrCat(call, " of ", FormatByteSize(size_bytes), " for exchanges of ranks")));
    return std::make_shared<GpuMemory>(gpu_, bytes, is_host);
  }

  const Gpu gpu_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExchangeDevice>> MakeGpuExchange(int gpu) {
  GEMINI_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Find());
  int count = 0;
  GEMINI_RETURN_IF_ERROR(CudaRuntimeStatus(::cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  if (gpu < 0 || gpu >= count) {
    return absl::NotFoundError(
        absl::StrCat("cuda:", gpu, ": this process sees ", count, " GPUs, from cuda:0 on"));
  }
  return std::make_unique<GpuExchange>(Gpu{.driver = *driver, .ordinal = gpu});
}

}  // namespace gemini::trainer
