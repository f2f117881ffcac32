// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/tier_store_cuda.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/store_limit.h"

namespace gemini::server {
namespace {

CUmemAllocationProp MemoryOf(int ordinal) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  return properties;
}

using StatusOf = absl::Status (*)(const CudaDriver&, CUresult, absl::string_view what);

// Where sharing is tried. FAILED_PRECONDITION: what drivers, and sandboxes between them and a
// process, say of what they do not do. Others: as CudaStatus.
absl::Status SharingStatus(const CudaDriver& driver, CUresult result, absl::string_view what) {
  absl::Status status = CudaStatus(driver, result, what);
  switch (result) {
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
      return absl::FailedPreconditionError(status.message());
    default:
      return status;
  }
}

// Exports the allocation, which then lives as long as the descriptor, and lets go of its handle.
absl::StatusOr<UniqueFd> ExportAndRelease(const CudaDriver& driver,
                                          CUmemGenericAllocationHandle handle,
                                          StatusOf status_of = CudaStatus) {
  int number = -1;
  const CUresult exported = driver.MemExportToShareableHandle(
      &number, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, /*flags=*/0);
  UniqueFd fd(exported == CUDA_SUCCESS ? number : -1);
  const CUresult released = driver.MemRelease(handle);
  GEMINI_RETURN_IF_ERROR(status_of(driver, exported, "cuMemExportToShareableHandle"));
  GEMINI_RETURN_IF_ERROR(CudaStatus(driver, released, "cuMemRelease"));
  if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "fcntl of a descriptor that cuMemExportToShareableHandle gave");
  }
  return fd;
}

absl::Status CannotShare(int ordinal, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("memory of GPU ", ordinal, " cannot be shared between processes here: ", why));
}

class CudaTierStore : public TierStore {
 public:
  CudaTierStore(const CudaDriver& driver, int ordinal, std::string uuid, int64_t granularity_bytes,
                int64_t capacity_bytes, int64_t slab_bytes)
      : driver_(driver),
        ordinal_(ordinal),
        uuid_(std::move(uuid)),
        granularity_bytes_(granularity_bytes),
        slab_bytes_(slab_bytes),
        limit_(Tier::kDevice, capacity_bytes) {}

  Tier tier() const override { return Tier::kDevice; }
  int64_t capacity_bytes() const override { return limit_.capacity_bytes(); }
  int64_t granted_bytes() const override { return limit_.taken_bytes(); }
  int64_t slab_bytes() const override { return slab_bytes_; }
  std::string gpu_uuid() const override { return uuid_; }

  absl::StatusOr<TierGrant> Make(int64_t slot_bytes, int64_t num_slots) override {
    if (slot_bytes % granularity_bytes_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat("slots of ", slot_bytes, " bytes on GPU ",
                                                     ordinal_, ", where they are multiples of ",
                                                     granularity_bytes_));
    }
    const int64_t size_bytes = slot_bytes * num_slots;
    TierGrant grant;
    grant.slot_bytes = slot_bytes;
    grant.slots_per_extent = 1;
    grant.extents.reserve(static_cast<size_t>(num_slots));
    GEMINI_RETURN_IF_ERROR(limit_.Take(size_bytes));
    for (int64_t i = 0; i < num_slots; ++i) {
      absl::StatusOr<UniqueFd> fd = MakeSlot(slot_bytes);
      if (!fd.ok()) {
        grant.extents.clear();
        limit_.GiveBack(size_bytes);
        return absl::Status(
            fd.status().code(),
            absl::StrCat("slot ", i, " of ", num_slots, ", ", FormatByteSize(slot_bytes),
                         " each: ", fd.status().message(),
                         ": see in nvidia-smi what else uses GPU ", ordinal_));
      }
      grant.extents.push_back({.fd = *std::move(fd), .num_slots = 1});
    }
    return grant;
  }

  void Destroy(TierGrant grant) override {
    const int64_t size_bytes = grant.size_bytes();
    grant.extents.clear();
    limit_.GiveBack(size_bytes);
  }

  // Exports the smallest allocation and imports it again. FAILED_PRECONDITION: one of both was
  // refused.
  // RESOURCE_EXHAUSTED: there is nothing left to try it with. UNAVAILABLE: the GPU or its driver is
  // in trouble.
  absl::Status TryToShare() const {
    const absl::Status shared = ShareOne();
    // cuMemCreate is asked for memory that can be exported, so it may be what refuses.
    const bool is_refused = absl::IsFailedPrecondition(shared) || absl::IsUnimplemented(shared) ||
                            absl::IsPermissionDenied(shared);
    return is_refused ? CannotShare(ordinal_, shared.message()) : shared;
  }

 private:
  absl::Status ShareOne() const {
    GEMINI_ASSIGN_OR_RETURN(const CUmemGenericAllocationHandle handle, Create(granularity_bytes_));
    GEMINI_ASSIGN_OR_RETURN(const UniqueFd fd, ExportAndRelease(driver_, handle, SharingStatus));
    CUmemGenericAllocationHandle imported = 0;
    const CUresult result = driver_.MemImportFromShareableHandle(
        &imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    // An importer may need a context, which clients have: nothing is known then.
    if (result == CUDA_ERROR_INVALID_CONTEXT) return absl::OkStatus();
    GEMINI_RETURN_IF_ERROR(SharingStatus(driver_, result, "cuMemImportFromShareableHandle"));
    return CudaStatus(driver_, driver_.MemRelease(imported), "cuMemRelease");
  }

  absl::StatusOr<CUmemGenericAllocationHandle> Create(int64_t size_bytes) const {
    const CUmemAllocationProp properties = MemoryOf(ordinal_);
    CUmemGenericAllocationHandle handle = 0;
    GEMINI_RETURN_IF_ERROR(CudaStatus(
        driver_,
        driver_.MemCreate(&handle, static_cast<size_t>(size_bytes), &properties, /*flags=*/0),
        "cuMemCreate"));
    return handle;
  }

  absl::StatusOr<UniqueFd> MakeSlot(int64_t size_bytes) const {
    GEMINI_ASSIGN_OR_RETURN(const CUmemGenericAllocationHandle handle, Create(size_bytes));
    return ExportAndRelease(driver_, handle);
  }

  const CudaDriver& driver_;
  const int ordinal_;
  const std::string uuid_;
  const int64_t granularity_bytes_;
  const int64_t slab_bytes_;
  StoreLimit limit_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TierStore>> MakeCudaTierStore(const CudaDriver& driver, int ordinal,
                                                             int64_t capacity_bytes,
                                                             int64_t slab_bytes) {
  CUdevice device = 0;
  GEMINI_RETURN_IF_ERROR(
      CudaStatus(driver, driver.DeviceGet(&device, ordinal), absl::StrCat("GPU ", ordinal)));
  const auto has = [&driver, device](CUdevice_attribute attribute) -> absl::StatusOr<bool> {
    int supported = 0;
    GEMINI_RETURN_IF_ERROR(CudaStatus(
        driver, driver.DeviceGetAttribute(&supported, attribute, device), "cuDeviceGetAttribute"));
    return supported != 0;
  };
  GEMINI_ASSIGN_OR_RETURN(const bool has_api,
                          has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  if (!has_api) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", ordinal,
                     " lacks CUDA's virtual memory management, which DEVICE is "
                     "made by: use another GPU, or a server without --device"));
  }
  GEMINI_ASSIGN_OR_RETURN(const bool has_descriptors,
                          has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  if (!has_descriptors) return CannotShare(ordinal, "it has no descriptors of memory");
  GEMINI_ASSIGN_OR_RETURN(const int64_t granularity_bytes, CudaGranularityBytes(driver, ordinal));
  if (slab_bytes <= 0 || slab_bytes % granularity_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("slabs of ", slab_bytes, " bytes on GPU ",
                                                   ordinal, ", where they are multiples of ",
                                                   granularity_bytes));
  }
  GEMINI_ASSIGN_OR_RETURN(std::string uuid, CudaDeviceUuid(driver, ordinal));
  auto store = std::make_unique<CudaTierStore>(driver, ordinal, std::move(uuid), granularity_bytes,
                                               capacity_bytes, slab_bytes);
  // Attributes have promised what the machine then refused: containers, WSL2.
  GEMINI_RETURN_IF_ERROR(store->TryToShare());
  return store;
}

int64_t CudaSlabBytes(int64_t capacity_bytes, int64_t granularity_bytes) {
  constexpr int64_t kSmallest = 64 * kMiB;
  constexpr int64_t kMostSlabs = 200;
  const int64_t least =
      RoundUp(std::max(kSmallest, capacity_bytes / kMostSlabs), granularity_bytes);
  for (int64_t slab = least; slab <= least + least / 2; slab += granularity_bytes) {
    if (capacity_bytes % slab == 0) return slab;
  }
  return least;
}

absl::StatusOr<int64_t> CudaGranularityBytes(const CudaDriver& driver, int ordinal) {
  CUmemAllocationProp properties = MemoryOf(ordinal);
  size_t bytes = 0;
  const auto ask = [&] {
    return driver.MemGetAllocationGranularity(&bytes, &properties,
                                              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  };
  CUresult result = ask();
  if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE) {
    // Of memory that cannot be shared.
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    result = ask();
  }
  GEMINI_RETURN_IF_ERROR(CudaStatus(driver, result, "cuMemGetAllocationGranularity"));
  if (bytes == 0 || bytes > static_cast<size_t>(kGiB)) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", ordinal, " gives memory in multiples of ", bytes, " bytes"));
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace gemini::server
