// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gemini::probe {
namespace {

[[noreturn]] void Fail(absl::string_view what, absl::string_view why) {
  std::cerr << ::program_invocation_short_name << ": " << what << ": " << why << std::endl;
  ::_exit(1);
}

// In a process of its own: one that has called cuInit can no longer fork children that use CUDA.
int NumGpus() {
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    ::_exit(::cudaGetDeviceCount(&count) == cudaSuccess ? std::min(count, 100) : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

template <typename Function>
void Load(const char* name, unsigned version, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
  GEMINI_NEED(::cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &state));
  NeedTrue(found != nullptr && state == cudaDriverEntryPointSuccess, name);
  function = reinterpret_cast<Function>(found);
}

// nvml.h is not part of every toolkit; this much of its interface has not changed since its first version.
struct NvmlMemory {
  unsigned long long total, free, used;
};

}  // namespace

void NeedGpu() {
  if (NumGpus() > 0) return;
  std::cout << "skipped: no CUDA driver with a GPU on this machine" << std::endl;
  std::exit(kSkipped);
}

void Answer(absl::string_view question, const nlohmann::json& answer) {
  std::cout << nlohmann::json{{"probe", ::program_invocation_short_name},
                              {"question", std::string(question)},
                              {"answer", answer}}
            << std::endl;
}

std::string NameOf(CUresult result) {
  PFN_cuGetErrorName_v6000 get_name = nullptr;
  Load("cuGetErrorName", 6000, get_name);
  const char* name = nullptr;
  return get_name(result, &name) == CUDA_SUCCESS
             ? name
             : absl::StrCat("CUresult ", static_cast<int>(result));
}

std::string NameOf(cudaError_t result) { return ::cudaGetErrorName(result); }

void Need(CUresult result, absl::string_view call) {
  if (result != CUDA_SUCCESS) Fail(call, NameOf(result));
}

void Need(cudaError_t result, absl::string_view call) {
  if (result != cudaSuccess) Fail(call, NameOf(result));
}

void NeedTrue(bool holds, absl::string_view what) {
  if (!holds) Fail(what, errno != 0 ? std::strerror(errno) : "it does not hold");
}

const Driver& Driver::Get() {
  static const Driver driver = [] {
    Driver d = {};
    Load("cuInit", 2000, d.Init);
    Load("cuCtxGetCurrent", 4000, d.CtxGetCurrent);
    Load("cuDevicePrimaryCtxGetState", 7000, d.DevicePrimaryCtxGetState);
    Load("cuDeviceGetAttribute", 2000, d.DeviceGetAttribute);
    Load("cuMemGetAllocationGranularity", 10020, d.MemGetAllocationGranularity);
    Load("cuMemCreate", 10020, d.MemCreate);
    Load("cuMemRelease", 10020, d.MemRelease);
    Load("cuMemExportToShareableHandle", 10020, d.MemExportToShareableHandle);
    Load("cuMemImportFromShareableHandle", 10020, d.MemImportFromShareableHandle);
    Load("cuMemAddressReserve", 10020, d.MemAddressReserve);
    Load("cuMemAddressFree", 10020, d.MemAddressFree);
    Load("cuMemMap", 10020, d.MemMap);
    Load("cuMemUnmap", 10020, d.MemUnmap);
    Load("cuMemSetAccess", 10020, d.MemSetAccess);
    return d;
  }();
  return driver;
}

int64_t UsedDeviceBytes() {
  struct Nvml {
    void* device = nullptr;
    int (*memory)(void* device, NvmlMemory* memory) = nullptr;
  };
  static const Nvml nvml = [] {
    Nvml found;
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return found;
    const auto init = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
    const auto handle = reinterpret_cast<int (*)(unsigned, void**)>(
        ::dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    const auto memory =
        reinterpret_cast<int (*)(void*, NvmlMemory*)>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
    if (init == nullptr || handle == nullptr || memory == nullptr) return found;
    if (init() == 0 && handle(0, &found.device) == 0) found.memory = memory;
    return found;
  }();
  NvmlMemory memory = {};
  if (nvml.memory == nullptr || nvml.memory(nvml.device, &memory) != 0) return -1;
  return static_cast<int64_t>(memory.used);
}

absl::Duration TimeUntil(absl::Duration patience, const std::function<bool()>& holds) {
  const absl::Time start = absl::Now();
  while (!holds()) {
    if (absl::Now() - start > patience) return absl::InfiniteDuration();
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::Now() - start;
}

double MedianMicroseconds(int repetitions, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    const absl::Time start = absl::Now();
    call();
    times.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[static_cast<size_t>(repetitions / 2)];
}

}  // namespace gemini::probe
