// SPDX-License-Identifier: Apache-2.0
#include "gemini/files/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/unique_fd.h"

namespace gemini {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  // Non-blocking only for the opening: a FIFO of this name must not stop us.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (status.st_size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", FormatByteSize(status.st_size),
                                                   ", expected at most ",
                                                   FormatByteSize(max_bytes)));
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(fd.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

absl::Status WriteTextFile(const std::string& path, absl::string_view content) {
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("create ", path));
  while (!content.empty()) {
    const ssize_t count = ::write(fd.get(), content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    content.remove_prefix(static_cast<size_t>(count));
  }
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd && (::fsync(fd.get()) == 0 || errno == EINVAL)) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("fsync ", directory));
}

std::string DirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

absl::Status CheckDiskRoom(const std::string& directory, absl::string_view what,
                           int64_t needed_bytes) {
  struct statvfs room;
  if (::statvfs(directory.c_str(), &room) != 0) {
    return ErrnoStatus(errno, absl::StrCat("free room of ", directory));
  }
  if (room.f_blocks == 0) return absl::OkStatus();  // A file system without a limit.
  const int64_t free_bytes = static_cast<int64_t>(room.f_bavail * room.f_frsize);
  if (free_bytes < needed_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " needs ", FormatByteSize(needed_bytes),
                                                     ", ", FormatByteSize(free_bytes), " free in ",
                                                     directory, ": make room, or save elsewhere"));
  }
  return absl::OkStatus();
}

}  // namespace gemini
