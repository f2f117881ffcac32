// SPDX-License-Identifier: Apache-2.0
// Calls the functions of NVIDIA's driver. libcuda is never linked: the CUDA runtime, which is part
// of the program, finds them by name and version, so that one binary runs with a driver and
// without.
// Thread: any.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

// The functions that this project calls, each named as in cuda.h without the `cu`. Tests fill one
// with functions of their own.
struct CudaDriver {
  PFN_cuInit_v2000 Init;
  PFN_cuGetErrorName_v6000 GetErrorName;
  PFN_cuGetErrorString_v6000 GetErrorString;
  PFN_cuCtxGetCurrent_v4000 CtxGetCurrent;
  PFN_cuCtxSetCurrent_v4000 CtxSetCurrent;
  PFN_cuDeviceGet_v2000 DeviceGet;
  PFN_cuDeviceGetAttribute_v2000 DeviceGetAttribute;
  PFN_cuDeviceGetUuid_v11040 DeviceGetUuid;
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

  // Returns this machine's functions, initialised. The driver is searched once in a process.
  // UNIMPLEMENTED: there is no driver, it is too old, or it does not start. NOT_FOUND: there is no
  // GPU.
  static absl::StatusOr<const CudaDriver*> Find();
};

// Returns a function by its name, with the type that it had in CUDA `version` (10020 is 10.2);
// never null.
// UNIMPLEMENTED: there is no driver, it is too old for that, or it does not start. NOT_FOUND: there
// is no GPU.
absl::StatusOr<void*> FindCudaFunction(const char* name, unsigned version);

// Returns the UUID of GPU `ordinal`, as CUDA counts them, or of its MIG instance: as nvidia-smi
// writes it, without the prefix. NOT_FOUND: there is none.
absl::StatusOr<std::string> CudaDeviceUuid(const CudaDriver& driver, int ordinal);

// Returns "<what>: <name of the error>: <its description>". CUDA_ERROR_OUT_OF_MEMORY:
// RESOURCE_EXHAUSTED. ..._NO_DEVICE, ..._INVALID_DEVICE: NOT_FOUND. ..._NOT_SUPPORTED:
// UNIMPLEMENTED. ..._NOT_PERMITTED: PERMISSION_DENIED. Others: UNAVAILABLE, for most mean that the
// GPU or its driver works no more. CUDA_SUCCESS: OK.
absl::Status CudaStatus(const CudaDriver& driver, CUresult result, absl::string_view what);

}  // namespace gemini
