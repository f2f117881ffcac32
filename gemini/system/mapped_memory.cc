// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/mapped_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini {

namespace {

constexpr int64_t kPageBytes = 4096;

// Behind the end of a file, the first access would be a SIGBUS. And by 0 Boost means all of it.
absl::Status CheckSize(int fd, int64_t size_bytes) {
  if (size_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("a mapping of ", size_bytes, " bytes"));
  }
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "look at a descriptor to be mapped");
  if (info.st_size >= size_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a descriptor of ", info.st_size, " bytes where ",
                                                 size_bytes, " are to be mapped"));
}

absl::Status ExcludeFromChildren(void* data, int64_t size_bytes) {
  if (::madvise(data, size_bytes, MADV_DONTFORK) != 0) return ErrnoStatus(errno, "MADV_DONTFORK");
  return absl::OkStatus();
}

// What Boost's mapped_region asks of a thing to be mapped. Its own classes open files by name; a
// memfd has none.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(fd_);
  }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<MappedMemory> MappedMemory::Map(int fd, int64_t size_bytes, Access access) {
  GEMINI_RETURN_IF_ERROR(CheckSize(fd, size_bytes));
  MappedMemory memory;
  try {
    memory.region_ = std::make_unique<boost::interprocess::mapped_region>(
        Descriptor(fd),
        access == Access::kReadOnly ? boost::interprocess::read_only
                                    : boost::interprocess::read_write,
        /*offset=*/0, static_cast<size_t>(size_bytes));
  } catch (const boost::interprocess::interprocess_exception& error) {
    return ErrnoStatus(error.get_native_error(), absl::StrCat("map ", size_bytes, " bytes"));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for the handle of a mapping");
  }
  memory.data_ = static_cast<std::byte*>(memory.region_->get_address());
  memory.size_bytes_ = size_bytes;
  GEMINI_RETURN_IF_ERROR(ExcludeFromChildren(memory.data_, size_bytes));
  return memory;
}

absl::StatusOr<MappedMemory> MappedMemory::Reserve(int64_t size_bytes) {
  const int64_t room_bytes = size_bytes + kReservationAlignment;
  void* const room =
      ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("reserve ", size_bytes, " bytes of addresses"));
  }
  // What is beside it goes back; of its last page, which munmap does not split, nothing.
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(room) % kReservationAlignment);
  const int64_t before_bytes = past == 0 ? 0 : kReservationAlignment - past;
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
  return ExcludeFromChildren(data, size_bytes);
}

MappedMemory::MappedMemory() = default;

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : region_(std::move(other.region_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(region_, other.region_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (region_ == nullptr && data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace gemini
