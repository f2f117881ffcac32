// SPDX-License-Identifier: Apache-2.0
// Whether pinned host memory can be made by CUDA itself (location HOST_NUMA), exported, and
// imported elsewhere: memory that would need no cudaHostRegister.
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/system/unique_fd.h"
#include "tests/gpu/probe/driver.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/timing.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr size_t kLeastBytes = size_t{256} << 20;
constexpr uint32_t kPattern = 0x5ca3c53a;

// Maps `handle` for the GPU and the host's processors. Returns what failed, "" for nothing.
std::string MapForBoth(CUmemGenericAllocationHandle handle, size_t size, uint32_t*& words) {
  const Driver& driver = Driver::Get();
  CUdeviceptr address = 0;
  GEMINI_NEED(driver.MemAddressReserve(&address, size, 0, 0, 0));
  const CUresult mapped = driver.MemMap(address, size, 0, handle, 0);
  if (mapped != CUDA_SUCCESS) return absl::StrCat("cuMemMap: ", NameOf(mapped));
  std::array<CUmemAccessDesc, 2> access = {};
  access[0].location = DeviceMemory().location;
  access[1].location = HostNumaMemory().location;
  for (CUmemAccessDesc& each : access) each.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult allowed = driver.MemSetAccess(address, size, access.data(), access.size());
  if (allowed != CUDA_SUCCESS) return absl::StrCat("cuMemSetAccess: ", NameOf(allowed));
  words = reinterpret_cast<uint32_t*>(address);
  return "";
}

// Copies them to the device: the rate, or what failed, and what arrived of the pattern.
nlohmann::json CopyToDevice(const uint32_t* words, size_t size) {
  void* device = nullptr;
  GEMINI_NEED(::cudaMalloc(&device, size));
  cudaError_t result = cudaSuccess;
  const std::vector<double> times = Microseconds(25, [&] {
    if (result == cudaSuccess) {
      result = ::cudaMemcpy(device, words, size, cudaMemcpyHostToDevice);
    }
  });
  if (result != cudaSuccess) return NameOf(result);
  nlohmann::json answer = GigabytesPerSecond(static_cast<double>(size), times);
  answer["fraction_right"] =
      FractionOf(static_cast<const uint32_t*>(device), static_cast<int64_t>(size / 4), kPattern);
  return answer;
}

// Hears a size, and the memory; says what it could do with that.
void Importer(Channel& parent) {
  UseDevice();
  const size_t size = std::stoull(parent.Hear().bytes);
  UniqueFd fd = parent.AwaitFd("import");
  CUmemGenericAllocationHandle handle = 0;
  const CUresult imported = Driver::Get().MemImportFromShareableHandle(
      &handle, AsShareableHandle(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  fd.Reset();
  if (imported != CUDA_SUCCESS) {
    parent.Say(absl::StrCat("cuMemImportFromShareableHandle: ", NameOf(imported)));
    return;
  }
  uint32_t* words = nullptr;
  const std::string failure = MapForBoth(handle, size, words);
  if (!failure.empty()) {
    parent.Say(failure);
    return;
  }
  const bool reads = words[0] == kPattern && words[size / 4 - 1] == kPattern;
  Answer("GB/s of copying imported HOST_NUMA to the device", CopyToDevice(words, size));
  parent.Say(reads ? "it reads the bytes" : "it reads other bytes");
}

// 0 where there is none: then it is answered why.
size_t SizeToAskFor(const CUmemAllocationProp& properties) {
  size_t granularity = 0;
  const CUresult result = Driver::Get().MemGetAllocationGranularity(
      &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (result != CUDA_SUCCESS) {
    Answer("granularity of HOST_NUMA in bytes", NameOf(result));
    return 0;
  }
  Answer("granularity of HOST_NUMA in bytes", granularity);
  return (kLeastBytes + granularity - 1) / granularity * granularity;
}

// Creates and exports. Returns whether it could; the answer has what the calls return.
bool Create(const std::string& question, const CUmemAllocationProp& properties, size_t size,
            CUmemGenericAllocationHandle& handle, UniqueFd& fd) {
  const CUresult created = Driver::Get().MemCreate(&handle, size, &properties, 0);
  if (created != CUDA_SUCCESS) {
    Answer(question, absl::StrCat("cuMemCreate: ", NameOf(created)));
    return false;
  }
  int exported = -1;
  const CUresult result = Driver::Get().MemExportToShareableHandle(
      &exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  fd = UniqueFd(result == CUDA_SUCCESS ? exported : -1);
  Answer(question, absl::StrCat("cuMemExportToShareableHandle: ", NameOf(result)));
  return true;
}

void AskOfHostNumaMemory() {
  const Process importer(Importer);
  GEMINI_NEED(Driver::Get().Init(0));
  int supported = 0;
  GEMINI_NEED(Driver::Get().DeviceGetAttribute(
      &supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  Answer("the attribute says that memory of HOST_NUMA is supported", supported != 0);
  const CUmemAllocationProp properties = HostNumaMemory();
  const size_t size = SizeToAskFor(properties);
  if (size == 0) return;

  CUmemGenericAllocationHandle handle = 0;
  UniqueFd fd;
  if (Create("creating and exporting HOST_NUMA without a context", properties, size, handle, fd)) {
    fd.Reset();
    GEMINI_NEED(Driver::Get().MemRelease(handle));
  }
  UseDevice();
  if (!Create("creating and exporting HOST_NUMA with a context", properties, size, handle, fd)) {
    return;
  }
  uint32_t* words = nullptr;
  const std::string failure = MapForBoth(handle, size, words);
  Answer("mapping HOST_NUMA for the GPU and the processors", failure.empty() ? "done" : failure);
  if (!failure.empty()) return;
  for (size_t i = 0; i < size / 4; ++i) words[i] = kPattern;
  Answer("GB/s of copying HOST_NUMA to the device", CopyToDevice(words, size));
  if (!fd) return;
  importer.channel().Say(absl::StrCat(size));
  importer.channel().Say("import", fd.get());
  Answer("another process that imports HOST_NUMA", importer.channel().HearOrWhyNot());
}

int Main() {
  NeedGpu();
  // Drivers are said to have crashed here.
  AskInAProcess("host memory made by CUDA", AskOfHostNumaMemory);
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
