// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/mapped_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini {

namespace {

constexpr int64_t kPageBytes = 4096;
// Where reservations begin: pages of that size can be mapped then where a file has them.
constexpr int64_t kReservedAt = 2 << 20;

// Behind the end of a file, the first access would be a SIGBUS.
absl::Status CheckSize(int fd, int64_t size_bytes) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "look at a descriptor to be mapped");
  if (info.st_size >= size_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a descriptor of ", info.st_size, " bytes where ",
                                                 size_bytes, " are to be mapped"));
}

}  // namespace

absl::StatusOr<MappedMemory> MappedMemory::Map(int fd, int64_t size_bytes, Access access) {
  GEMINI_RETURN_IF_ERROR(CheckSize(fd, size_bytes));
  const int protection = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", size_bytes, " bytes"));
  MappedMemory memory;
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_bytes_ = size_bytes;
  if (::madvise(data, size_bytes, MADV_DONTFORK) != 0) return ErrnoStatus(errno, "MADV_DONTFORK");
  return memory;
}

absl::StatusOr<MappedMemory> MappedMemory::Reserve(int64_t size_bytes) {
  const int64_t room_bytes = size_bytes + kReservedAt;
  void* const room =
      ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("reserve ", size_bytes, " bytes of addresses"));
  }
  // What is beside it goes back; of its last page, which munmap does not split, nothing.
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(room) % kReservedAt);
  const int64_t before_bytes = past == 0 ? 0 : kReservedAt - past;
  std::byte* const data = static_cast<std::byte*>(room) + before_bytes;
  const int64_t used_bytes = (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (before_bytes > 0) ::munmap(room, before_bytes);
  ::munmap(data + used_bytes, room_bytes - before_bytes - used_bytes);
  MappedMemory memory;
  memory.data_ = data;
  memory.size_bytes_ = size_bytes;
  return memory;
}

absl::Status MappedMemory::MapAt(int64_t offset_bytes, int fd, int64_t size_bytes) {
  GEMINI_CHECK(offset_bytes >= 0 && offset_bytes + size_bytes <= size_bytes_);
  GEMINI_RETURN_IF_ERROR(CheckSize(fd, size_bytes));
  void* data = ::mmap(data_ + offset_bytes, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", size_bytes, " bytes"));
  if (::madvise(data, size_bytes, MADV_DONTFORK) != 0) return ErrnoStatus(errno, "MADV_DONTFORK");
  return absl::OkStatus();
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace gemini
