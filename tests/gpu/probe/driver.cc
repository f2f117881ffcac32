// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/driver.h"

#include "gemini/system/cuda_driver.h"
#include "tests/gpu/probe/probe.h"

namespace gemini::probe {
namespace {

template <typename Function>
void Load(const char* name, unsigned version, Function& function) {
  const absl::StatusOr<void*> found = FindCudaFunction(name, version);
  Need(found.status(), name);
  function = reinterpret_cast<Function>(*found);
}

}  // namespace

const Driver& Driver::Get() {
  static const Driver driver = [] {
    Driver d = {};
    Load("cuInit", 2000, d.Init);
    Load("cuGetErrorName", 6000, d.GetErrorName);
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

}  // namespace gemini::probe
