// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/vmm_memory.h"

#include <cuda_runtime_api.h>

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

int64_t GranularityBytes(const CUmemAllocationProp& properties) {
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

UniqueFd Export(CUmemGenericAllocationHandle handle) {
  int fd = -1;
  GEMINI_NEED(Driver::Get().MemExportToShareableHandle(
      &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return UniqueFd(fd);
}

CUmemGenericAllocationHandle Import(const UniqueFd& fd) {
  CUmemGenericAllocationHandle handle = 0;
  void* const value = reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
  GEMINI_NEED(Driver::Get().MemImportFromShareableHandle(&handle, value,
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
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

int64_t Count(const VmmMapping& mapping, uint32_t value) {
  void* pinned = nullptr;
  GEMINI_NEED(::cudaMallocHost(&pinned, sizeof(unsigned long long)));
  auto* const count = static_cast<unsigned long long*>(pinned);
  *count = 0;
  CountWords(mapping.words(), mapping.num_words(), value, count, nullptr);
  GEMINI_NEED(::cudaDeviceSynchronize());
  const auto found = static_cast<int64_t>(*count);
  GEMINI_NEED(::cudaFreeHost(count));
  return found;
}

}  // namespace gemini::probe
