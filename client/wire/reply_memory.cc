// SPDX-License-Identifier: Apache-2.0
#include "client/wire/reply_memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "gemini/system/errno_status.h"

namespace gemini::client {
namespace {

absl::Status TakenBack() {
  return absl::AbortedError("the server took back what it sent before it was read: ask again");
}

}  // namespace

absl::StatusOr<std::string> ReadReplyMemory(const Reply& reply, int64_t size_bytes) {
  struct stat info = {};
  const bool is_one = reply.fds.size() == 1 && ::fstat(reply.fds[0].get(), &info) == 0;
  if (is_one && size_bytes > 0 && info.st_size == 0) return TakenBack();
  if (!is_one || size_bytes < 1 || info.st_size != size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the server sent ", reply.fds.size(),
                                                   " descriptors where one of ", size_bytes,
                                                   " bytes is needed"));
  }
  std::string bytes(size_bytes, '\0');
  for (int64_t filled = 0; filled < size_bytes;) {
    const ssize_t got =
        ::pread(reply.fds[0].get(), bytes.data() + filled, size_bytes - filled, filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read what the server sent");
    if (got == 0) return TakenBack();
    filled += got;
  }
  return bytes;
}

}  // namespace gemini::client
