// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/sealed_memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/huge_pages.h"

namespace gemini::server {
namespace {

// Not to be executed, which a machine may demand of all memfds (vm.memfd_noexec 2).
absl::StatusOr<UniqueFd> CreateMemfd(absl::string_view name) {
  constexpr unsigned kNoExecSeal = 8;  // Headers before Linux 6.3 have no name for it.
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const std::string text(name);
  UniqueFd fd(::memfd_create(text.c_str(), kFlags | kNoExecSeal));
  // An earlier kernel, which makes no difference between the two.
  if (!fd && errno == EINVAL) fd = UniqueFd(::memfd_create(text.c_str(), kFlags));
  if (fd) return fd;
  const int error = errno;
  const absl::Status status = ErrnoStatus(error, absl::StrCat("memfd_create ", name));
  if (error != EACCES) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(),
                                   ": does sysctl vm.memfd_noexec, or a filter of system calls, "
                                   "forbid memfds here?"));
}

absl::StatusOr<UniqueFd> MakeMemfd(absl::string_view name, int64_t size_bytes, MemfdPages pages) {
  GEMINI_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd(name));
  if (::ftruncate(fd.get(), size_bytes) != 0) {
    return ErrnoStatus(errno, absl::StrCat("size memfd ", name));
  }
  if (pages == MemfdPages::kHuge) AllocateHugePages(fd.get(), size_bytes);
  if (pages != MemfdPages::kOnDemand) {
    // Pages that are there already stay as they are.
    int result;
    while ((result = ::fallocate(fd.get(), 0, 0, size_bytes)) != 0 && errno == EINTR) {
    }
    if (result != 0) {
      return ErrnoStatus(errno,
                         absl::StrCat("allocate ", FormatByteSize(size_bytes), " for ", name));
    }
  }
  return fd;
}

absl::Status Seal(const UniqueFd& fd, int seals) {
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return ErrnoStatus(errno, "seal a memfd");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> MakeSealedMemfd(absl::string_view name, int64_t size_bytes,
                                         MemfdPages pages) {
  absl::StatusOr<UniqueFd> fd = MakeMemfd(name, size_bytes, pages);
  if (!fd.ok()) return fd;
  const absl::Status sealed = Seal(*fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (!sealed.ok()) return sealed;
  return fd;
}

absl::StatusOr<ServerWritableMemfd> MakeServerWritableMemfd(absl::string_view name,
                                                            int64_t size_bytes) {
  absl::StatusOr<UniqueFd> fd = MakeMemfd(name, size_bytes, MemfdPages::kAllocated);
  if (!fd.ok()) return fd.status();
  absl::StatusOr<MappedMemory> memory =
      MappedMemory::Map(fd->get(), size_bytes, MappedMemory::Access::kReadWrite);
  if (!memory.ok()) return memory.status();
  const absl::Status sealed =
      Seal(*fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  if (!sealed.ok()) return sealed;
  return ServerWritableMemfd{*std::move(fd), *std::move(memory)};
}

absl::StatusOr<UniqueFd> MakeReadOnlyMemfd(absl::string_view name, absl::string_view bytes) {
  absl::StatusOr<UniqueFd> fd =
      MakeMemfd(name, static_cast<int64_t>(bytes.size()), MemfdPages::kOnDemand);
  if (!fd.ok()) return fd;
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t size =
        ::pwrite(fd->get(), bytes.data() + written, bytes.size() - written, written);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrnoStatus(errno, absl::StrCat("fill memfd ", name));
    written += size;
  }
  const absl::Status sealed = Seal(*fd, F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  if (!sealed.ok()) return sealed;
  return fd;
}

void PunchHole(int fd, int64_t offset_bytes, int64_t size_bytes) {
  if (size_bytes <= 0) return;
  while (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_bytes, size_bytes) !=
             0 &&
         errno == EINTR) {
  }
}

void DestroyMemfd(UniqueFd fd, int64_t size_bytes) {
  if (!fd) return;
  // Where it fails the close below is all that can be done: the pages go with the last descriptor.
  (void)!::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size_bytes);
}

}  // namespace gemini::server
