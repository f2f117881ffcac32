// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/cuda_driver.h"

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini {
namespace {

// A version as CUDA writes it, 1000 times the major and 10 times the minor one.
std::string VersionName(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Why the runtime found no driver that it can use.
absl::Status NoDriver() {
  int version = 0;
  ::cudaDriverGetVersion(&version);
  if (version == 0) {
    return absl::UnimplementedError(
        "there is no NVIDIA driver (libcuda.so.1): install one, 580 or newer, until nvidia-smi "
        "shows the GPU");
  }
  return absl::UnimplementedError(absl::StrCat(
      "the NVIDIA driver is made for CUDA ", VersionName(version), ", and this program for ",
      VersionName(CUDART_VERSION), ": install driver 580 or newer"));
}

template <typename Function>
absl::Status Find(const char* name, unsigned version, Function& function) {
  GEMINI_ASSIGN_OR_RETURN(void* const found, FindCudaFunction(name, version));
  function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

absl::StatusOr<CudaDriver> FindAll() {
  CudaDriver driver = {};
  GEMINI_RETURN_IF_ERROR(Find("cuInit", 2000, driver.Init));
  GEMINI_RETURN_IF_ERROR(Find("cuGetErrorName", 6000, driver.GetErrorName));
  GEMINI_RETURN_IF_ERROR(Find("cuGetErrorString", 6000, driver.GetErrorString));
  GEMINI_RETURN_IF_ERROR(Find("cuCtxGetCurrent", 4000, driver.CtxGetCurrent));
  GEMINI_RETURN_IF_ERROR(Find("cuCtxSetCurrent", 4000, driver.CtxSetCurrent));
  GEMINI_RETURN_IF_ERROR(Find("cuDeviceGet", 2000, driver.DeviceGet));
  GEMINI_RETURN_IF_ERROR(Find("cuDeviceGetAttribute", 2000, driver.DeviceGetAttribute));
  GEMINI_RETURN_IF_ERROR(Find("cuDeviceGetUuid", 11040, driver.DeviceGetUuid));
  GEMINI_RETURN_IF_ERROR(
      Find("cuMemGetAllocationGranularity", 10020, driver.MemGetAllocationGranularity));
  GEMINI_RETURN_IF_ERROR(Find("cuMemCreate", 10020, driver.MemCreate));
  GEMINI_RETURN_IF_ERROR(Find("cuMemRelease", 10020, driver.MemRelease));
  GEMINI_RETURN_IF_ERROR(
      Find("cuMemExportToShareableHandle", 10020, driver.MemExportToShareableHandle));
  GEMINI_RETURN_IF_ERROR(
      Find("cuMemImportFromShareableHandle", 10020, driver.MemImportFromShareableHandle));
  GEMINI_RETURN_IF_ERROR(Find("cuMemAddressReserve", 10020, driver.MemAddressReserve));
  GEMINI_RETURN_IF_ERROR(Find("cuMemAddressFree", 10020, driver.MemAddressFree));
  GEMINI_RETURN_IF_ERROR(Find("cuMemMap", 10020, driver.MemMap));
  GEMINI_RETURN_IF_ERROR(Find("cuMemUnmap", 10020, driver.MemUnmap));
  GEMINI_RETURN_IF_ERROR(Find("cuMemSetAccess", 10020, driver.MemSetAccess));
  GEMINI_RETURN_IF_ERROR(CudaStatus(driver, driver.Init(0), "initialising the NVIDIA driver"));
  return driver;
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Find() {
  static const absl::StatusOr<CudaDriver> driver = FindAll();
  if (!driver.ok()) return driver.status();
  return &*driver;
}

absl::StatusOr<void*> FindCudaFunction(const char* name, unsigned version) {
  // Without a driver the call leaves both as they are.
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      ::cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (error != cudaSuccess) ::cudaGetLastError();  // Else somebody takes it for an error of theirs.
  if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary) return NoDriver();
  if (error == cudaErrorNoDevice) return absl::NotFoundError("the NVIDIA driver finds no GPU");
  if (error != cudaSuccess) {
    return absl::UnimplementedError(
        absl::StrCat("the NVIDIA driver does not start: ", ::cudaGetErrorName(error), ": ",
                     ::cudaGetErrorString(error), ": see what nvidia-smi says"));
  }
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the NVIDIA driver has no ", name, " of CUDA ",
                                                 VersionName(static_cast<int>(version)),
                                                 ": install driver 580 or newer"));
  }
  return function;
}

absl::StatusOr<std::string> CudaDeviceUuid(const CudaDriver& driver, int ordinal) {
  CUdevice device = 0;
  GEMINI_RETURN_IF_ERROR(
      CudaStatus(driver, driver.DeviceGet(&device, ordinal), absl::StrCat("cuda:", ordinal)));
  CUuuid uuid = {};
  GEMINI_RETURN_IF_ERROR(
      CudaStatus(driver, driver.DeviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
  std::string text;
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppend(&text, absl::Hex(static_cast<unsigned char>(uuid.bytes[i]), absl::kZeroPad2));
  }
  return text;
}

absl::Status CudaStatus(const CudaDriver& driver, CUresult result, absl::string_view what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* description = nullptr;
  driver.GetErrorName(result, &name);
  driver.GetErrorString(result, &description);
  // Both stay null for a number that this driver does not know.
  const std::string message = name == nullptr || description == nullptr
                                  ? absl::StrCat(what, ": CUDA error ", static_cast<int>(result))
                                  : absl::StrCat(what, ": ", name, ": ", description);
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::ResourceExhaustedError(message);
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return absl::NotFoundError(message);
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::UnimplementedError(message);
    case CUDA_ERROR_NOT_PERMITTED:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace gemini
