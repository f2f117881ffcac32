// SPDX-License-Identifier: Apache-2.0
// Whether pinned host memory can be made by CUDA itself (location HOST_NUMA), exported, and imported elsewhere:
// memory that would need no cudaHostRegister.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/unique_fd.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr size_t kBytes = size_t{256} << 20;
constexpr uint32_t kPattern = 0x5ca3c53a;

// Maps `handle` for the GPU and the host's processors. Returns where, or what failed.
std::string MapForBoth(CUmemGenericAllocationHandle handle, CUdeviceptr& address) {
  const Driver& driver = Driver::Get();
  GEMINI_NEED(driver.MemAddressReserve(&address, kBytes, 0, 0, 0));
  const CUresult mapped = driver.MemMap(address, kBytes, 0, handle, 0);
  if (mapped != CUDA_SUCCESS) return absl::StrCat("cuMemMap: ", NameOf(mapped));
  std::array<CUmemAccessDesc, 2> access = {};
  access[0].location = DeviceMemory().location;
  access[1].location = HostNumaMemory().location;
  for (CUmemAccessDesc& each : access) each.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult allowed = driver.MemSetAccess(address, kBytes, access.data(), access.size());
  return allowed == CUDA_SUCCESS ? "" : absl::StrCat("cuMemSetAccess: ", NameOf(allowed));
}

void Importer(Channel& parent) {
  UseDevice();
  const UniqueFd fd = parent.AwaitFd("import");
  CUmemGenericAllocationHandle handle = 0;
  const CUresult imported = Driver::Get().MemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (imported != CUDA_SUCCESS) {
    parent.Say(absl::StrCat("cuMemImportFromShareableHandle: ", NameOf(imported)));
    return;
  }
  CUdeviceptr address = 0;
  const std::string failure = MapForBoth(handle, address);
  if (!failure.empty()) {
    parent.Say(failure);
    return;
  }
  const auto* words = reinterpret_cast<const uint32_t*>(address);
  parent.Say(words[0] == kPattern && words[kBytes / 4 - 1] == kPattern ? "it reads the bytes"
                                                                       : "it reads other bytes");
  parent.Await("end");
}

// In the process that creates, with a context.
std::string Create(CUmemGenericAllocationHandle& handle, CUdeviceptr& address) {
  int supported = 0;
  GEMINI_NEED(Driver::Get().DeviceGetAttribute(
      &supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  Answer("the attribute says that memory of HOST_NUMA is supported", supported != 0);
  const CUmemAllocationProp properties = HostNumaMemory();
  const CUresult created = Driver::Get().MemCreate(&handle, kBytes, &properties, 0);
  if (created != CUDA_SUCCESS) return absl::StrCat("cuMemCreate: ", NameOf(created));
  return MapForBoth(handle, address);
}

int Main() {
  NeedGpu();
  Process importer(Importer);
  UseDevice();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  const std::string failure = Create(handle, address);
  if (!failure.empty()) {
    Answer("creating and mapping 256 MiB of HOST_NUMA", failure);
    return 0;
  }
  auto* const words = reinterpret_cast<uint32_t*>(address);
  for (size_t i = 0; i < kBytes / 4; ++i) words[i] = kPattern;
  Answer("creating and mapping 256 MiB of HOST_NUMA", "the processor writes to it");

  void* device = nullptr;
  GEMINI_NEED(::cudaMalloc(&device, kBytes));
  const double us = MedianMicroseconds(
      9, [&] { GEMINI_NEED(::cudaMemcpy(device, words, kBytes, cudaMemcpyHostToDevice)); });
  Answer("GiB/s of copying it to the device", static_cast<double>(kBytes) / us * 1e6 / (1 << 30));

  const UniqueFd fd = Export(handle);
  importer.channel().Say("import", fd.get());
  Answer("another process that imports it", importer.channel().Hear());
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
