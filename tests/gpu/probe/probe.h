// SPDX-License-Identifier: Apache-2.0
// What the probes share. A probe asks this machine's CUDA driver how it behaves where its documents are silent, and
// prints one JSON object for each answer: {"probe", "question", "answer"}. docs/cuda.md says what was found.
// Exit status: 0, all was asked, whatever the answers; 77 (kSkipped), nothing was, with the reason on stdout;
// 1, a call failed that no question was about.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace gemini::probe {

inline constexpr int kSkipped = 77;

// Ends the program with kSkipped where there is no GPU. Leaves CUDA untouched in this process, which may fork.
void NeedGpu();

void Answer(absl::string_view question, const nlohmann::json& answer);

std::string NameOf(CUresult result);
std::string NameOf(cudaError_t result);

// Ends the program with what failed, unless `result` is success.
void Need(CUresult result, absl::string_view call);
void Need(cudaError_t result, absl::string_view call);
void NeedTrue(bool holds, absl::string_view what);
#define GEMINI_NEED(call) ::gemini::probe::Need(call, #call)

// Functions of libcuda, which is never linked: asked of the CUDA runtime by name and version. Needs no context.
struct Driver {
  PFN_cuInit_v2000 Init;
  PFN_cuCtxGetCurrent_v4000 CtxGetCurrent;
  PFN_cuDevicePrimaryCtxGetState_v7000 DevicePrimaryCtxGetState;
  PFN_cuDeviceGetAttribute_v2000 DeviceGetAttribute;
  PFN_cuMemGetAllocationGranularity_v10020 MemGetAllocationGranularity;
  PFN_cuMemCreate_v10020 MemCreate;
  PFN_cuMemRelease_v10020 MemRelease;
  PFN_cuMemExportToShareableHandle_v10020 MemExportToShareableHandle;
  PFN_cuMemImportFromShareableHandle_v10020 MemImportFromShareableHandle;
  PFN_cuMemAddressReserve_v10020 MemAddressReserve;
  PFN_cuMemAddressFree_v10020 MemAddressFree;
  PFN_cuMemMap_v10020 MemMap;
  PFN_cuMemUnmap_v10020 MemUnmap;
  PFN_cuMemSetAccess_v10020 MemSetAccess;

  // Ends the program where the driver lacks one of them.
  static const Driver& Get();
};

// Device 0's memory that is in use by all processes, as NVML counts it: bytes, or -1 without NVML.
int64_t UsedDeviceBytes();

// Calls `holds` every millisecond until it returns true. Returns the time that it took, or InfiniteDuration after
// `patience`.
absl::Duration TimeUntil(absl::Duration patience, const std::function<bool()>& holds);

// The median time of `repetitions` calls, in microseconds.
double MedianMicroseconds(int repetitions, const std::function<void()>& call);

}  // namespace gemini::probe
