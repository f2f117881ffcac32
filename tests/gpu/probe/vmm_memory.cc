// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/vmm_memory.h"

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tests/gpu/probe/driver.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"

namespace gemini::probe {
namespace {

CUmemAllocationProp MemoryAt(CUmemLocationType type) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = type;
  properties.location.id = 0;
  return properties;
}

void Map(CUdeviceptr address, int64_t size_bytes, CUmemGenericAllocationHandle handle) {
  const Driver& driver = Driver::Get();
  const auto size = static_cast<size_t>(size_bytes);
  GEMINI_NEED(driver.MemMap(address, size, /*offset=*/0, handle, /*flags=*/0));
  CUmemAccessDesc access = {};
  access.location = DeviceMemory().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  GEMINI_NEED(driver.MemSetAccess(address, size, &access, 1));
}

}  // namespace

CUmemAllocationProp DeviceMemory() { return MemoryAt(CU_MEM_LOCATION_TYPE_DEVICE); }

CUmemAllocationProp HostNumaMemory() { return MemoryAt(CU_MEM_LOCATION_TYPE_HOST_NUMA); }

int64_t GranularityBytes() {
  const CUmemAllocationProp properties = DeviceMemory();
  size_t bytes = 0;
  GEMINI_NEED(Driver::Get().MemGetAllocationGranularity(&bytes, &properties,
                                                        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  return static_cast<int64_t>(bytes);
}

CUmemGenericAllocationHandle CreateDeviceMemory(int64_t size_bytes) {
  const CUmemAllocationProp properties = DeviceMemory();
  CUmemGenericAllocationHandle handle = 0;
  GEMINI_NEED(Driver::Get().MemCreate(&handle, static_cast<size_t>(size_bytes), &properties, 0));
  return handle;
}

CUmemGenericAllocationHandle Import(const UniqueFd& fd) {
  CUmemGenericAllocationHandle handle = 0;
  GEMINI_NEED(Driver::Get().MemImportFromShareableHandle(&handle, AsShareableHandle(fd),
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
}

void* AsShareableHandle(const UniqueFd& fd) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
}

VmmMapping::VmmMapping(CUmemGenericAllocationHandle handle, int64_t size_bytes)
    : size_bytes_(size_bytes) {
  GEMINI_NEED(Driver::Get().MemAddressReserve(&address_, static_cast<size_t>(size_bytes),
                                              /*alignment=*/0, /*addr=*/0, /*flags=*/0));
  Map(address_, size_bytes, handle);
}

VmmMapping::~VmmMapping() {
  GEMINI_NEED(Driver::Get().MemUnmap(address_, static_cast<size_t>(size_bytes_)));
  GEMINI_NEED(Driver::Get().MemAddressFree(address_, static_cast<size_t>(size_bytes_)));
}

void VmmMapping::Replace(CUmemGenericAllocationHandle handle) {
  GEMINI_NEED(Driver::Get().MemUnmap(address_, static_cast<size_t>(size_bytes_)));
  Map(address_, size_bytes_, handle);
}

void UseDevice() {
  GEMINI_NEED(::cudaSetDevice(0));
  GEMINI_NEED(::cudaFree(nullptr));
}

nlohmann::json FractionOf(const uint32_t* words, int64_t num_words, uint32_t value) {
  void* memory = nullptr;
  cudaError_t result = ::cudaMalloc(&memory, sizeof(unsigned long long));
  if (result != cudaSuccess) return NameOf(result);
  auto* const counter = static_cast<unsigned long long*>(memory);
  unsigned long long count = 0;
  result = ::cudaMemset(counter, 0, sizeof(count));
  if (result == cudaSuccess) result = CountWords(words, num_words, value, counter, nullptr);
  if (result == cudaSuccess) {
    result = ::cudaMemcpy(&count, counter, sizeof(count), cudaMemcpyDeviceToHost);
  }
  const cudaError_t freed = ::cudaFree(counter);
  if (result == cudaSuccess) result = freed;
  if (result != cudaSuccess) return NameOf(result);
  return static_cast<double>(count) / static_cast<double>(num_words);
}

}  // namespace gemini::probe
