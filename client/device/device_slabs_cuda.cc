// SPDX-License-Identifier: Apache-2.0
#include "client/device/device_slabs_cuda.h"

#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/copy/cuda_call_scope.h"
#include "gemini/byte_size.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

absl::StatusOr<std::unique_ptr<DeviceSlabsCuda>> DeviceSlabsCuda::Reserve(const CudaDriver& driver,
                                                                          int ordinal,
                                                                          DeviceSlabsOffer offer) {
  GEMINI_CHECK(offer.slab_bytes > 0 && offer.num_slabs > 0);
  GEMINI_ASSIGN_OR_RETURN(const std::string own_uuid, CudaDeviceUuid(driver, ordinal));
  if (own_uuid != offer.gpu_uuid) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the server's DEVICE is the GPU with UUID '",
        absl::CEscape(absl::string_view(offer.gpu_uuid).substr(0, 64)), "', and cuda:", ordinal,
        " of this process has ", own_uuid, ": use that GPU, or a server of this one"));
  }
  std::unique_ptr<DeviceSlabsCuda> slabs(new DeviceSlabsCuda(driver, ordinal, std::move(offer)));
  const CudaCallScope scope(driver, ordinal);
  GEMINI_RETURN_IF_ERROR(CudaStatus(
      driver,
      driver.MemAddressReserve(&slabs->begin_, static_cast<size_t>(slabs->reserved_bytes()),
                               /*alignment=*/0, /*addr=*/0, /*flags=*/0),
      absl::StrCat("cuMemAddressReserve of ", FormatByteSize(slabs->reserved_bytes()))));
  return slabs;
}

DeviceSlabsCuda::~DeviceSlabsCuda() {
  if (begin_ == 0) return;
  const CudaCallScope scope(driver_, ordinal_);
  // Addresses with a mapping left cannot be freed, and are of no use to anybody else.
  if (Keep(0).ok()) driver_.MemAddressFree(begin_, static_cast<size_t>(reserved_bytes()));
}

absl::Status DeviceSlabsCuda::Map(int fd) {
  if (num_mapped_ == offer_.num_slabs) {
    return absl::ResourceExhaustedError(absl::StrCat("a slab beyond the ", offer_.num_slabs, " of ",
                                                     FormatByteSize(offer_.slab_bytes),
                                                     " reserved for"));
  }
  const CudaCallScope scope(driver_, ordinal_);
  const auto size = static_cast<size_t>(offer_.slab_bytes);
  const CUdeviceptr at = AddressOf(num_mapped_);
  GEMINI_ASSIGN_OR_RETURN(const CUmemGenericAllocationHandle handle, Take(fd));
  absl::Status status = CudaStatus(
      driver_, driver_.MemMap(at, size, /*offset=*/0, handle, /*flags=*/0), "cuMemMap of a slab");
  const bool is_mapped = status.ok();
  if (is_mapped) {
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal_},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    status = CudaStatus(driver_, driver_.MemSetAccess(at, size, &access, /*count=*/1),
                        "cuMemSetAccess to a slab");
  }
  // The mapping holds the memory from here on.
  status.Update(CudaStatus(driver_, driver_.MemRelease(handle), "cuMemRelease"));
  if (status.ok()) {
    ++num_mapped_;
  } else if (is_mapped) {
    driver_.MemUnmap(at, size);
  }
  return status;
}

absl::StatusOr<CUmemGenericAllocationHandle> DeviceSlabsCuda::Take(int fd) const {
  CUmemGenericAllocationHandle handle = 0;
  if (!offer_.is_counted) {
    GEMINI_RETURN_IF_ERROR(CudaStatus(
        driver_,
        driver_.MemImportFromShareableHandle(&handle,
                                             reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle"));
    return handle;
  }
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal_};
  GEMINI_RETURN_IF_ERROR(CudaStatus(
      driver_,
      driver_.MemCreate(&handle, static_cast<size_t>(offer_.slab_bytes), &properties, /*flags=*/0),
      absl::StrCat("cuMemCreate of ", FormatByteSize(offer_.slab_bytes))));
  return handle;
}

absl::Status DeviceSlabsCuda::Keep(int64_t num_slabs) {
  const CudaCallScope scope(driver_, ordinal_);
  while (num_mapped_ > num_slabs) {
    GEMINI_RETURN_IF_ERROR(CudaStatus(
        driver_,
        driver_.MemUnmap(AddressOf(num_mapped_ - 1), static_cast<size_t>(offer_.slab_bytes)),
        "cuMemUnmap of a slab"));
    --num_mapped_;
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
