// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda_driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "gemini/system/check.h"

namespace gemini {
namespace {

FakeCudaDriver* current = nullptr;

int64_t SizeOf(const UniqueFd& file) {
  struct stat info = {};
  GEMINI_CHECK(::fstat(file.get(), &info) == 0);
  return info.st_size;
}

}  // namespace

struct FakeCudaDriver::Functions {
  static CUresult Init(unsigned) { return CUDA_SUCCESS; }

  static CUresult GetErrorName(CUresult error, const char** name) {
    switch (error) {
      case CUDA_ERROR_OUT_OF_MEMORY:
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
        return CUDA_SUCCESS;
      case CUDA_ERROR_NOT_SUPPORTED:
        *name = "CUDA_ERROR_NOT_SUPPORTED";
        return CUDA_SUCCESS;
      case CUDA_ERROR_UNKNOWN:
        *name = "CUDA_ERROR_UNKNOWN";
        return CUDA_SUCCESS;
      default:
        *name = nullptr;
        return CUDA_ERROR_INVALID_VALUE;
    }
  }

  static CUresult GetErrorString(CUresult error, const char** text) {
    return GetErrorName(error, text);
  }

  // There are no contexts.
  static CUresult CtxGetCurrent(CUcontext* context) {
    *context = nullptr;
    return CUDA_SUCCESS;
  }
  static CUresult CtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

  static CUresult DeviceGet(CUdevice* device, int ordinal) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
  }

  static CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    const auto told = current->attributes_.find(attribute);
    *value = told == current->attributes_.end() ? 1 : told->second;
    return CUDA_SUCCESS;
  }

  // kUuid.
  static CUresult DeviceGetUuid(CUuuid* uuid, CUdevice) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    for (size_t i = 0; i < sizeof(uuid->bytes); ++i) uuid->bytes[i] = static_cast<char>(i);
    return CUDA_SUCCESS;
  }

  static CUresult MemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                              CUmemAllocationGranularity_flags) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    if (!current->Shares(*properties)) return CUDA_ERROR_NOT_SUPPORTED;
    *bytes = static_cast<size_t>(current->granularity_bytes_);
    return CUDA_SUCCESS;
  }

  static CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                            const CUmemAllocationProp* properties, unsigned long long flags) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    if (!current->Shares(*properties)) return CUDA_ERROR_NOT_SUPPORTED;
    const auto bytes = static_cast<int64_t>(size);
    if (bytes == 0 || bytes % current->granularity_bytes_ != 0 || flags != 0 ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->location.id != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    int64_t used = 0;
    for (const auto& [other, file] : current->files_) used += SizeOf(file);
    if (used + bytes > current->memory_bytes_) {
      ++current->num_out_of_memory_;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    UniqueFd file(::memfd_create("fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    GEMINI_CHECK(file && ::ftruncate(file.get(), bytes) == 0);
    GEMINI_CHECK(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    *handle = current->Keep(std::move(file));
    return CUDA_SUCCESS;
  }

  static CUresult MemRelease(CUmemGenericAllocationHandle handle) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) {
      current->files_.erase(handle);  // There is nothing else that a caller could do with it.
      return refused;
    }
    return current->files_.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }

  static CUresult MemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    const auto found = current->files_.find(handle);
    if (found == current->files_.end() || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *static_cast<int*>(shareable) = ::dup(found->second.get());  // Open across exec, as it may be.
    return CUDA_SUCCESS;
  }

  static CUresult MemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                               void* shareable, CUmemAllocationHandleType type) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    UniqueFd file(::dup(static_cast<int>(reinterpret_cast<intptr_t>(shareable))));
    if (!file || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    *handle = current->Keep(std::move(file));
    return CUDA_SUCCESS;
  }

  static CUresult MemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                                    CUdeviceptr wish, unsigned long long flags) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    const auto bytes = static_cast<int64_t>(size);
    if (bytes == 0 || bytes % current->granularity_bytes_ != 0 || alignment != 0 || wish != 0 ||
        flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    void* const memory = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = reinterpret_cast<CUdeviceptr>(memory);
    current->ranges_[*address].size_bytes = bytes;
    return CUDA_SUCCESS;
  }

  static CUresult MemAddressFree(CUdeviceptr address, size_t size) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    const auto found = current->ranges_.find(address);
    if (found == current->ranges_.end() || found->second.size_bytes != static_cast<int64_t>(size) ||
        !found->second.mapped.empty()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    ::munmap(reinterpret_cast<void*>(address), size);
    current->ranges_.erase(found);
    return CUDA_SUCCESS;
  }

  static CUresult MemMap(CUdeviceptr address, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    const auto [range, at] = current->FindRange(address, size);
    const auto file = current->files_.find(handle);
    const auto bytes = static_cast<int64_t>(size);
    if (range == nullptr || file == current->files_.end() || offset != 0 || flags != 0 ||
        bytes > SizeOf(file->second)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& [other, other_bytes] : range->mapped) {
      if (at < other + other_bytes && other < at + bytes) return CUDA_ERROR_INVALID_VALUE;
    }
    GEMINI_CHECK(::mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
                        file->second.get(), 0) != MAP_FAILED);
    range->mapped[at] = bytes;
    return CUDA_SUCCESS;
  }

  // The entire mapping, no less.
  static CUresult MemUnmap(CUdeviceptr address, size_t size) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    const auto [range, at] = current->FindRange(address, size);
    if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto mapping = range->mapped.find(at);
    if (mapping == range->mapped.end() || mapping->second != static_cast<int64_t>(size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    GEMINI_CHECK(::mmap(reinterpret_cast<void*>(address), size, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    range->mapped.erase(mapping);
    return CUDA_SUCCESS;
  }

  static CUresult MemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                               size_t count) {
    MutexLock lock(current->mutex_);
    if (const CUresult refused = current->Begin(); refused != CUDA_SUCCESS) return refused;
    const auto [range, at] = current->FindRange(address, size);
    if (range == nullptr || !range->mapped.contains(at) || count != 1 ||
        access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || access->location.id != 0 ||
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    GEMINI_CHECK(::mprotect(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE) == 0);
    return CUDA_SUCCESS;
  }
};

FakeCudaDriver::FakeCudaDriver(int64_t memory_bytes, int64_t granularity_bytes)
    : granularity_bytes_(granularity_bytes),
      driver_{.Init = Functions::Init,
              .GetErrorName = Functions::GetErrorName,
              .GetErrorString = Functions::GetErrorString,
              .CtxGetCurrent = Functions::CtxGetCurrent,
              .CtxSetCurrent = Functions::CtxSetCurrent,
              .DeviceGet = Functions::DeviceGet,
              .DeviceGetAttribute = Functions::DeviceGetAttribute,
              .DeviceGetUuid = Functions::DeviceGetUuid,
              .MemGetAllocationGranularity = Functions::MemGetAllocationGranularity,
              .MemCreate = Functions::MemCreate,
              .MemRelease = Functions::MemRelease,
              .MemExportToShareableHandle = Functions::MemExportToShareableHandle,
              .MemImportFromShareableHandle = Functions::MemImportFromShareableHandle,
              .MemAddressReserve = Functions::MemAddressReserve,
              .MemAddressFree = Functions::MemAddressFree,
              .MemMap = Functions::MemMap,
              .MemUnmap = Functions::MemUnmap,
              .MemSetAccess = Functions::MemSetAccess},
      memory_bytes_(memory_bytes) {
  GEMINI_CHECK(std::exchange(current, this) == nullptr);
}

FakeCudaDriver::~FakeCudaDriver() { current = nullptr; }

int64_t FakeCudaDriver::num_handles() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(files_.size());
}

int64_t FakeCudaDriver::num_mappings() const {
  MutexLock lock(mutex_);
  int64_t count = 0;
  for (const auto& [begin, range] : ranges_) count += static_cast<int64_t>(range.mapped.size());
  return count;
}

int64_t FakeCudaDriver::num_ranges() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(ranges_.size());
}

std::pair<FakeCudaDriver::Range*, int64_t> FakeCudaDriver::FindRange(CUdeviceptr address,
                                                                     size_t size) {
  const auto behind = ranges_.upper_bound(address);
  if (behind == ranges_.begin()) return {nullptr, 0};
  auto& [begin, range] = *std::prev(behind);
  const auto offset = static_cast<int64_t>(address - begin);
  if (offset + static_cast<int64_t>(size) > range.size_bytes) return {nullptr, 0};
  return {&range, offset};
}

int64_t FakeCudaDriver::num_calls() const {
  MutexLock lock(mutex_);
  return num_calls_;
}

void FakeCudaDriver::SetMemoryBytes(int64_t memory_bytes) {
  MutexLock lock(mutex_);
  memory_bytes_ = memory_bytes;
}

int64_t FakeCudaDriver::num_out_of_memory() const {
  MutexLock lock(mutex_);
  return num_out_of_memory_;
}

int64_t FakeCudaDriver::NumDescriptors() {
  int64_t count = 0;
  std::error_code gone;  // The listing's own.
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    count += target.find("fake-cuda") != std::string::npos ? 1 : 0;
  }
  return count;
}

bool FakeCudaDriver::Shares(const CUmemAllocationProp& properties) const {
  const auto told =
      attributes_.find(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  return properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE || told == attributes_.end() ||
         told->second != 0;
}

void FakeCudaDriver::FailCall(int64_t number, CUresult result, int64_t count) {
  MutexLock lock(mutex_);
  failing_call_ = num_calls_ + number;
  failures_left_ = count;
  failure_ = result;
}

void FakeCudaDriver::SetAttribute(CUdevice_attribute attribute, int value) {
  MutexLock lock(mutex_);
  attributes_[attribute] = value;
}

CUresult FakeCudaDriver::Begin() {
  if (num_calls_++ < failing_call_ || failures_left_ == 0) return CUDA_SUCCESS;
  --failures_left_;
  return failure_;
}

CUmemGenericAllocationHandle FakeCudaDriver::Keep(UniqueFd file) {
  files_.emplace(++last_handle_, std::move(file));
  return last_handle_;
}

}  // namespace gemini
