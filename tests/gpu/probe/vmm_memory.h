// SPDX-License-Identifier: Apache-2.0
// Memory by CUDA's virtual memory API, of device 0. Where it is not said otherwise, a failed call
// ends the program. Mapping needs a current context.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "gemini/system/unique_fd.h"
#include "nlohmann/json.hpp"

namespace gemini::probe {

// What cuMemCreate is told: pinned memory of device 0 that can be exported as a descriptor.
CUmemAllocationProp DeviceMemory();
// The same of the host's NUMA node 0.
CUmemAllocationProp HostNumaMemory();

// The bytes that a size of device memory must be a multiple of.
int64_t GranularityBytes();

CUmemGenericAllocationHandle CreateDeviceMemory(int64_t size_bytes);
// Leaves the descriptor open, which it doesn't take over.
CUmemGenericAllocationHandle Import(const UniqueFd& fd);
// What the driver takes for a descriptor.
void* AsShareableHandle(const UniqueFd& fd);

// `size_bytes` of addresses with `handle` mapped there, readable and writable by device 0. Unmapped
// at the end, by when the GPU must be done with them; the handle stays the caller's.
class VmmMapping {
 public:
  VmmMapping(CUmemGenericAllocationHandle handle, int64_t size_bytes);
  VmmMapping(const VmmMapping&) = delete;
  VmmMapping& operator=(const VmmMapping&) = delete;
  ~VmmMapping();

  // Maps another handle in place of this one.
  void Replace(CUmemGenericAllocationHandle handle);
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(address_); }
  int64_t num_words() const { return size_bytes_ / 4; }

 private:
  const int64_t size_bytes_;
  CUdeviceptr address_ = 0;
};

// Makes device 0's primary context and makes it current.
void UseDevice();

// Returns which fraction of these words is `value`, or the name of what failed. Waits for the GPU,
// but not for other streams that don't block.
nlohmann::json FractionOf(const uint32_t* words, int64_t num_words, uint32_t value);

}  // namespace gemini::probe
