// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAFunctions.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "client/copy/copy_engine_cuda.h"
#include "client/copy/cuda_call_scope.h"
#include "client/copy/cuda_status.h"
#include "client/device/device_slabs_cuda.h"
#include "client/kernels/device_kernels_cuda.h"
#include "client/session/device_split.h"
#include "client/torch/device/gpu_device.h"
#include "gemini/byte_size.h"
#include "gemini/system/mutex.h"
#include "gemini/system/nvml.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// A context with the kernels that it loads as they are called, and the workspaces of libraries:
// where NVML cannot tell, and in addition to what it tells of an empty one.
constexpr int64_t kContextBytes = 512 * kMiB;
constexpr int64_t kLoadedLaterBytes = 256 * kMiB;
// A GPU's entry for a page of 4 KiB has 8 bytes.
constexpr int64_t kHostBytesPerEntryByte = 4096 / 8;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// Torch throws where CUDA fails: from then on the GPU is of no use to this process.
absl::Status Guarded(absl::string_view what, absl::FunctionRef<void()> call) {
  try {
    call();
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(what, ": ", error.what()));
  }
  return absl::OkStatus();
}

class GpuDevice : public SessionDevice {
 public:
  GpuDevice(const CudaDriver& driver, int ordinal, int64_t total_bytes, int64_t context_bytes)
      : driver_(driver),
        device_(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(ordinal)),
        total_bytes_(total_bytes),
        context_bytes_(context_bytes),
        kernels_(driver, ordinal, [this] { return CurrentStream(); }) {}
  ~GpuDevice() override {
    const CudaCallScope scope(driver_, device_.index());
    MutexLock lock(mutex_);
    for (void* const scratch : scratch_) ::cudaFree(scratch);
  }

  c10::Device device() const override { return device_; }
  DeviceKernels& kernels() override { return kernels_; }
  int64_t context_bytes() const override { return context_bytes_; }

  absl::Status Configure(SessionOptions& options) override {
    const int64_t want_bytes = options.want_bytes[Tier::kDevice];
    cuda_bytes_ = context_bytes_ + options.want_bytes[Tier::kHost] / kHostBytesPerEntryByte;
    if (want_bytes <= cuda_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          FormatByteSize(want_bytes), " of ", device_.str(), " for DEVICE: CUDA itself takes ",
          FormatByteSize(cuda_bytes_), " of it: raise the device memory"));
    }
    // What is granted at least has room for it, too.
    options.floor_bytes[Tier::kDevice] =
        std::min(want_bytes, options.floor_bytes[Tier::kDevice] + cuda_bytes_);
    options.apart_bytes = DeviceSplit(cuda_bytes_, kMiB, want_bytes).apart_bytes();
    options.make_slabs = [this](const DeviceSlabsOffer& offer) {
      slab_bytes_ = offer.slab_bytes;
      return DeviceSlabsCuda::Reserve(driver_, device_.index(), offer);
    };
    options.make_copies = [this](TimelineShm* timeline) {
      return CopyEngineCuda::Make(driver_, {.device = device_.index(),
                                            .compute_stream = [this] { return CurrentStream(); },
                                            .timeline = timeline});
    };
    options.pin_host = {.pin =
                            [this](std::byte* data, int64_t size_bytes) {
                              const CudaCallScope scope(driver_, device_.index());
                              const cudaError_t result = ::cudaHostRegister(
                                  data, static_cast<size_t>(size_bytes), cudaHostRegisterPortable);
                              if (result != cudaSuccess) ::cudaGetLastError();
                              return CudaRuntimeStatus(
                                  result, absl::StrCat("cudaHostRegister of a slab of ",
                                                       FormatByteSize(size_bytes)));
                            },
                        .unpin =
                            [this](std::byte* data) {
                              const CudaCallScope scope(driver_, device_.index());
                              ::cudaHostUnregister(data);
                            }};
    return absl::OkStatus();
  }

  void Begin(std::shared_ptr<Session> session, BudgetFollower& follower) override {
    session_ = std::move(session);
    follower_ = &follower;
    // It may have been granted less than it wanted.
    split_.emplace(cuda_bytes_, slab_bytes_, session_->granted_bytes()[Tier::kDevice]);
    follower_->SetApart(split_->apart_bytes());
    session_->Latch(Guarded("limiting Torch's memory", [this] {
      allocator::emptyCache();
      SetLimit();
      allocator::resetPeakStats(device_.index());
    }));
  }

  void End() override {
    // The lease goes to others, and what Torch caches with it.
    session_->Latch(Guarded("giving Torch's memory back", [this] {
      allocator::emptyCache();
      allocator::setMemoryFraction(1.0, device_.index());
    }));
    session_.reset();
    follower_ = nullptr;
  }

  void AddChunks(int64_t size_bytes) override { split_->AddChunks(size_bytes); }

  void EndStep() override {
    session_->Latch(Guarded("reading what Torch has allocated", [this] {
      const auto stats = allocator::getDeviceStats(device_.index());
      allocated_peak_bytes_ =
          std::max(allocated_peak_bytes_.load(), stats.allocated_bytes[kAll].peak);
      allocator::resetPeakStats(device_.index());
      const int64_t reserved_peak_bytes =
          std::max(std::exchange(reserved_peak_bytes_, 0), stats.reserved_bytes[kAll].peak);
      if (!split_->EndStep(reserved_peak_bytes, follower_->device_bytes())) return;
      // Torch gives up what it caches before chunks take it.
      allocator::emptyCache();
      SetLimit();
      follower_->SetApart(split_->apart_bytes());
    }));
  }

  bool GiveWay() override {
    if (session_ == nullptr) return false;
    const int64_t chunk_floor_bytes = session_->residency().stats().pinned_peak_bytes;
    if (!split_->Grow(chunk_floor_bytes, follower_->device_bytes())) return false;
    // Chunks go first, then Torch may take.
    follower_->SetApart(split_->apart_bytes());
    follower_->BetweenOperators();
    const absl::Status limited =
        follower_->KeepsApart()
            ? Guarded("limiting Torch's memory", [this] { SetLimit(); })
            : absl::UnavailableError("slabs of the GPU cannot be unmapped: see the first error");
    session_->Latch(limited);
    return limited.ok();
  }

  absl::Status CheckOperators() const override {
    const CudaCallScope scope(driver_, device_.index());
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const cudaError_t result = ::cudaStreamIsCapturing(CurrentStream(), &capture);
    if (result == cudaSuccess && capture == cudaStreamCaptureStatusNone) return absl::OkStatus();
    if (result != cudaSuccess) return CudaRuntimeStatus(result, "cudaStreamIsCapturing");
    return absl::FailedPreconditionError(
        "a CUDA graph is being captured, and managed tensors lie elsewhere when it is replayed: "
        "run the model without graphs, or capture what uses no managed tensor");
  }

  std::byte* NanScratch(int64_t size_bytes) override {
    const CudaCallScope scope(driver_, device_.index());
    MutexLock lock(mutex_);
    if (scratch_bytes_ < size_bytes) {
      void* larger = nullptr;
      if (::cudaMalloc(&larger, static_cast<size_t>(size_bytes)) != cudaSuccess) return nullptr;
      scratch_.push_back(larger);  // Those before may be in use.
      scratch_bytes_ = size_bytes;
    }
    // Anew each time: an operator may have written to it.
    const cudaError_t filled = ::cudaMemsetAsync(
        scratch_.back(), 0xff, static_cast<size_t>(scratch_bytes_), CurrentStream());
    return filled == cudaSuccess ? static_cast<std::byte*>(scratch_.back()) : nullptr;
  }

  int64_t outside_bytes() const override {
    int64_t bytes = cuda_bytes_;
    Guarded("reading what Torch has reserved", [&] {
      bytes += allocator::getDeviceStats(device_.index()).reserved_bytes[kAll].current;
    }).IgnoreError();  // EndStep latches it.
    return bytes;
  }
  int64_t non_model_peak_bytes() const override {
    int64_t peak_bytes = allocated_peak_bytes_;
    Guarded("reading what Torch has allocated", [&] {
      peak_bytes = std::max(peak_bytes,
                            allocator::getDeviceStats(device_.index()).allocated_bytes[kAll].peak);
    }).IgnoreError();  // The session has it.
    return peak_bytes;
  }
  void ResetPeaks() override {
    allocated_peak_bytes_ = 0;
    if (session_ == nullptr) return;
    session_->Latch(Guarded("resetting Torch's peaks", [this] {
      // The peak may be an evaluation's; the division takes it into account, too.
      reserved_peak_bytes_ =
          std::max(reserved_peak_bytes_,
                   allocator::getDeviceStats(device_.index()).reserved_bytes[kAll].peak);
      allocator::resetPeakStats(device_.index());
    }));
  }

 private:
  cudaStream_t CurrentStream() const {
    return c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  }
  // Torch's memory ends where what is apart does. Throws.
  void SetLimit() {
    allocator::setMemoryFraction(std::min(1.0, static_cast<double>(split_->operator_bytes()) /
                                                   static_cast<double>(total_bytes_)),
                                 device_.index());
  }

  const CudaDriver& driver_;
  const c10::Device device_;
  const int64_t total_bytes_;
  const int64_t context_bytes_;
  int64_t cuda_bytes_ = 0;  // The context, and the GPU's page tables of registered HOST.
  DeviceKernelsCuda kernels_;
  int64_t slab_bytes_ = 0;
  std::shared_ptr<Session> session_;
  BudgetFollower* follower_ = nullptr;
  std::optional<DeviceSplit> split_;
  int64_t reserved_peak_bytes_ = 0;               // Before the last ResetPeaks of this step.
  std::atomic<int64_t> allocated_peak_bytes_{0};  // In the steps since ResetPeaks that have ended.
  Mutex mutex_;
  std::vector<void*> scratch_ ABSL_GUARDED_BY(mutex_);
  int64_t scratch_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Size of the last scratch.
};

// Torch's operators for CUDA register themselves when their library is loaded: 2 GB that a program
// on the CPU does without.
absl::Status LoadTorchCuda() {
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("Torch's part of CUDA cannot be loaded: ", ::dlerror()));
  }
  if (at::globalContext().hasCUDA()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "Torch finds no GPU: call OpenGpu before all that looks for one, or link libtorch_cuda");
}

// Whether this process has its context there. Without an answer: no.
bool HasContext(const CudaDriver& driver, int ordinal) {
  const absl::StatusOr<void*> found = FindCudaFunction("cuDevicePrimaryCtxGetState", 7000);
  CUdevice device = 0;
  unsigned flags = 0;
  int active = 0;
  return found.ok() && driver.DeviceGet(&device, ordinal) == CUDA_SUCCESS &&
         reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(*found)(device, &flags, &active) ==
             CUDA_SUCCESS &&
         active != 0;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SessionDevice>> OpenGpu(int ordinal) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Find();
  if (!driver.ok()) {
    return absl::Status(driver.status().code(),
                        absl::StrCat("cuda:", ordinal, ": ", driver.status().message()));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::string uuid, CudaDeviceUuid(**driver, ordinal));
  const bool had_context = HasContext(**driver, ordinal);
  const absl::StatusOr<GpuMemory> before = ReadGpuMemory(uuid);
  try {
    GEMINI_RETURN_IF_ERROR(LoadTorchCuda());
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(ordinal));
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    const c10::cuda::CUDAGuard guard(device);
    size_t free_bytes = 0, total_bytes = 0;
    if (const cudaError_t result = ::cudaMemGetInfo(&free_bytes, &total_bytes);
        result != cudaSuccess) {
      return absl::UnavailableError(
          absl::StrCat("cuda:", ordinal, ": ", ::cudaGetErrorString(result)));
    }
    const absl::StatusOr<GpuMemory> after = ReadGpuMemory(uuid);
    const bool is_seen = !had_context && before.ok() && after.ok();
    const int64_t seen_bytes = is_seen ? before->free_bytes - after->free_bytes : kContextBytes;
    return std::make_shared<GpuDevice>(
        **driver, ordinal, static_cast<int64_t>(total_bytes),
        // Others may come and go meanwhile.
        std::clamp(seen_bytes, kContextBytes / 2, 2 * kContextBytes) + kLoadedLaterBytes);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cuda:", ordinal, ": ", error.what()));
  }
}

}  // namespace gemini::client::hooks
