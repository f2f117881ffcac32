// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/nvml.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini {
namespace {

// nvml.h is not part of every toolkit; this much of its interface has not changed since its first
// version.
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned gpu, memory;  // Percent.
};
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlNotFound = 6;
// By the GPU.
constexpr int kNvmlPcieSent = 0;
constexpr int kNvmlPcieReceived = 1;

struct Nvml {
  int (*Init)();
  const char* (*ErrorString)(int result);
  int (*DeviceGetHandleByUuid)(const char* uuid, void** device);
  int (*DeviceGetMemoryInfo)(void* device, void* memory);  // An NvmlMemory.
  // Null where the driver has none.
  int (*DeviceGetUtilizationRates)(void* device, void* utilization);  // An NvmlUtilization.
  int (*DeviceGetPcieThroughput)(void* device, int counter, unsigned* kilobytes_per_second);

  absl::Status ToStatus(int result, absl::string_view what) const {
    if (result == kNvmlSuccess) return absl::OkStatus();
    const std::string message =
        absl::StrCat(what, ": NVML error ", result, ": ", ErrorString(result));
    return result == kNvmlNotFound ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
};

template <typename Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("libnvidia-ml.so.1 has no ", name, ": install NVIDIA driver 580 or newer"));
}

absl::StatusOr<Nvml> Load() {
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("NVML, a part of the NVIDIA driver, cannot be loaded: ", ::dlerror()));
  }
  Nvml nvml = {};
  GEMINI_RETURN_IF_ERROR(Find(library, "nvmlInit_v2", nvml.Init));
  GEMINI_RETURN_IF_ERROR(Find(library, "nvmlErrorString", nvml.ErrorString));
  GEMINI_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetHandleByUUID", nvml.DeviceGetHandleByUuid));
  GEMINI_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetMemoryInfo", nvml.DeviceGetMemoryInfo));
  Find(library, "nvmlDeviceGetUtilizationRates", nvml.DeviceGetUtilizationRates).IgnoreError();
  Find(library, "nvmlDeviceGetPcieThroughput", nvml.DeviceGetPcieThroughput).IgnoreError();
  GEMINI_RETURN_IF_ERROR(nvml.ToStatus(nvml.Init(), "nvmlInit_v2"));
  return nvml;
}

const absl::StatusOr<Nvml>& Library() {
  static const absl::StatusOr<Nvml> nvml = Load();
  return nvml;
}

absl::StatusOr<void*> FindDevice(const Nvml& nvml, const std::string& uuid) {
  void* device = nullptr;
  absl::Status found;
  for (const char* const kind : {"GPU-", "MIG-"}) {
    found = nvml.ToStatus(nvml.DeviceGetHandleByUuid(absl::StrCat(kind, uuid).c_str(), &device),
                          absl::StrCat("GPU ", uuid));
    if (!absl::IsNotFound(found)) break;
  }
  GEMINI_RETURN_IF_ERROR(found);
  return device;
}

absl::StatusOr<GpuMemory> ReadMemory(const Nvml& nvml, void* device) {
  NvmlMemory memory = {};
  GEMINI_RETURN_IF_ERROR(
      nvml.ToStatus(nvml.DeviceGetMemoryInfo(device, &memory), "nvmlDeviceGetMemoryInfo"));
  return GpuMemory{.total_bytes = static_cast<int64_t>(memory.total),
                   .free_bytes = static_cast<int64_t>(memory.free)};
}

std::optional<int64_t> ReadLink(const Nvml& nvml, void* device, int counter) {
  constexpr int64_t kUnitBytes = 1000;
  unsigned kilobytes = 0;
  if (nvml.DeviceGetPcieThroughput == nullptr ||
      nvml.DeviceGetPcieThroughput(device, counter, &kilobytes) != kNvmlSuccess) {
    return std::nullopt;
  }
  return kUnitBytes * kilobytes;
}

}  // namespace

absl::StatusOr<GpuMemory> ReadGpuMemory(const std::string& uuid) {
  const absl::StatusOr<Nvml>& nvml = Library();
  if (!nvml.ok()) return nvml.status();
  GEMINI_ASSIGN_OR_RETURN(void* const device, FindDevice(*nvml, uuid));
  return ReadMemory(*nvml, device);
}

absl::StatusOr<GpuUse> ReadGpuUse(const std::string& uuid) {
  const absl::StatusOr<Nvml>& nvml = Library();
  if (!nvml.ok()) return nvml.status();
  GEMINI_ASSIGN_OR_RETURN(void* const device, FindDevice(*nvml, uuid));
  GpuUse use;
  GEMINI_ASSIGN_OR_RETURN(use.memory, ReadMemory(*nvml, device));
  NvmlUtilization utilization = {};
  if (nvml->DeviceGetUtilizationRates != nullptr &&
      nvml->DeviceGetUtilizationRates(device, &utilization) == kNvmlSuccess) {
    use.busy_percent = static_cast<int>(utilization.gpu);
  }
  use.to_gpu_bytes_per_second = ReadLink(*nvml, device, kNvmlPcieReceived);
  use.from_gpu_bytes_per_second = ReadLink(*nvml, device, kNvmlPcieSent);
  return use;
}

}  // namespace gemini
