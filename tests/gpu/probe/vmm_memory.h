// SPDX-License-Identifier: Apache-2.0
// Memory by CUDA's virtual memory API, of device 0. A failed call ends the probe. Mapping needs a current context.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "gemini/unique_fd.h"

namespace gemini::probe {

// What cuMemCreate is told: pinned memory of device 0 that can be exported as a descriptor.
CUmemAllocationProp DeviceMemory();
// The same of the host's NUMA node 0.
CUmemAllocationProp HostNumaMemory();

// The bytes that a size must be a multiple of.
int64_t GranularityBytes(const CUmemAllocationProp& properties);

CUmemGenericAllocationHandle CreateDeviceMemory(int64_t size_bytes);
UniqueFd Export(CUmemGenericAllocationHandle handle);
// Leaves the descriptor open, which it doesn't take over.
CUmemGenericAllocationHandle Import(const UniqueFd& fd);

// `size_bytes` of addresses with `handle` mapped there, readable and writable by device 0. Unmapped at the end, by
// when the GPU must be done with them; the handle stays the caller's.
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

// How many of the mapping's words are `value`; waits for the GPU.
int64_t Count(const VmmMapping& mapping, uint32_t value);

}  // namespace gemini::probe
