// SPDX-License-Identifier: Apache-2.0
// Functions of libcuda, which is never linked: asked of the CUDA runtime by name and version.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>

namespace gemini::probe {

struct Driver {
  PFN_cuInit_v2000 Init;
  PFN_cuGetErrorName_v6000 GetErrorName;
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

}  // namespace gemini::probe
