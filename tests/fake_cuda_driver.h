// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU: allocations are memory files, and their mappings are the process's
// own. It holds callers to what cuda.h says of sizes and of handles, fails any call that is asked
// to, and counts what was not given back. What only a GPU can show is in tests/gpu.
// Thread: any. One at a time in a process, for the driver's functions have no argument for it.
#pragma once
#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "gemini/system/cuda_driver.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"

namespace gemini {

class FakeCudaDriver {
 public:
  // One GPU, number 0. A size is a multiple of `granularity_bytes`, and of all allocations with a
  // handle at most `memory_bytes`.
  FakeCudaDriver(int64_t memory_bytes, int64_t granularity_bytes);
  FakeCudaDriver(const FakeCudaDriver&) = delete;
  FakeCudaDriver& operator=(const FakeCudaDriver&) = delete;
  ~FakeCudaDriver();

  const CudaDriver& driver() const { return driver_; }
  // Of its GPU, as CudaDeviceUuid writes it.
  static constexpr const char* kUuid = "00010203-0405-0607-0809-0a0b0c0d0e0f";
  // Handles that were made or imported, and not released.
  int64_t num_handles() const;
  // Allocations that are mapped, in all ranges.
  int64_t num_mappings() const;
  // Ranges of addresses that are reserved.
  int64_t num_ranges() const;
  // Descriptors of allocations that this process has open, by the kernel.
  static int64_t NumDescriptors();
  // Calls that a refusal is possible of, ever.
  int64_t num_calls() const;
  // The call of that number from now on, 0 the next, and `count` in all, return `result` and do
  // nothing.
  void FailCall(int64_t number, CUresult result, int64_t count = 1);
  // From now on as if the GPU had so many bytes; and how often there were too few, ever.
  void SetMemoryBytes(int64_t memory_bytes);
  int64_t num_out_of_memory() const;
  // What DeviceGetAttribute answers for it; 1 unless told. Of descriptors 0: there is no memory
  // with them.
  void SetAttribute(CUdevice_attribute attribute, int value);

 private:
  struct Functions;  // Of CudaDriver's types.

  // What the call that is under way must return at once; CUDA_SUCCESS: nothing.
  CUresult Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Shares(const CUmemAllocationProp& properties) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CUmemGenericAllocationHandle Keep(UniqueFd file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A range of addresses, and the size of what is mapped there, by offset.
  struct Range {
    int64_t size_bytes = 0;
    std::map<int64_t, int64_t> mapped;
  };
  // The range that has all of [address, address + size), and the offset there; null: there is none.
  std::pair<Range*, int64_t> FindRange(CUdeviceptr address, size_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t granularity_bytes_;
  const CudaDriver driver_;
  mutable Mutex mutex_;
  std::map<CUmemGenericAllocationHandle, UniqueFd> files_ ABSL_GUARDED_BY(mutex_);
  std::map<CUdeviceptr, Range> ranges_ ABSL_GUARDED_BY(mutex_);  // By first address.
  CUmemGenericAllocationHandle last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<CUdevice_attribute, int> attributes_ ABSL_GUARDED_BY(mutex_);
  int64_t memory_bytes_ ABSL_GUARDED_BY(mutex_);
  int64_t num_out_of_memory_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t failing_call_ ABSL_GUARDED_BY(mutex_) = 0;  // And those behind it.
  int64_t failures_left_ ABSL_GUARDED_BY(mutex_) = 0;
  CUresult failure_ ABSL_GUARDED_BY(mutex_) = CUDA_SUCCESS;
};

}  // namespace gemini
