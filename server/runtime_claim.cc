// SPDX-License-Identifier: Apache-2.0
#include "server/runtime_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/runtime_directory.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {
namespace {

absl::Status MakeDirectory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) == 0) return absl::OkStatus();
  const int error = errno;
  if (error != EEXIST) {
    absl::Status status = ErrnoStatus(error, absl::StrCat("make runtime directory ", directory));
    return absl::Status(status.code(), absl::StrCat(status.message(),
                                                    ": pass --runtime-dir DIR with a directory "
                                                    "that you can make"));
  }
  struct stat info;
  if (::lstat(directory.c_str(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("look at ", directory));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(directory, " is no directory"));
  }
  // Not repaired: who passed /tmp by mistake would lose it to everybody else.
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "runtime directory %s is of uid %d, mode %o: it must be yours with mode 700", directory,
        info.st_uid, info.st_mode & 07777));
  }
  return absl::OkStatus();
}

// Whether `path` still names the file of `fd`: somebody may have cleaned the directory up.
bool IsAt(int fd, const std::string& path) {
  struct stat held;
  struct stat named;
  return ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

absl::StatusOr<UniqueFd> TakeLock(const std::string& path) {
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::array<char, 32> pid = {};
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("lock ", path));
    (void)!::pread(lock.get(), pid.data(), pid.size() - 1, 0);
    return absl::FailedPreconditionError(
        absl::StrCat("a geminid (pid ", absl::StripAsciiWhitespace(pid.data()), ") serves ",
                     path.substr(0, path.rfind('/')),
                     " already: use that one, stop it, or pass another --runtime-dir"));
  }
  if (!IsAt(lock.get(), path)) {
    return absl::AbortedError(absl::StrCat(path, " was replaced while it was being locked"));
  }
  const std::string text = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, absl::StrCat("write ", path));
  }
  return lock;
}

absl::StatusOr<UniqueFd> ListenOn(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat info;
  // Under the lock nobody listens on it.
  if (::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) ::unlink(path.c_str());
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listener) return ErrnoStatus(errno, "socket");
  // The socket never exists with a wider mode.
  const mode_t mask = ::umask(0177);
  const int bound =
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::umask(mask);
  if (bound != 0) return ErrnoStatus(error, absl::StrCat("bind ", path));
  // From here on, since a peer may connect and send before it is accepted.
  (void)RefuseDescriptors(listener.get());
  if (::listen(listener.get(), 128) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen on ", path));
  }
  return listener;
}

}  // namespace

absl::StatusOr<RuntimeClaim> RuntimeClaim::Take(absl::string_view directory) {
  const std::string folder(directory);
  const std::string path = absl::StrCat(folder, "/", kSocketName);
  constexpr size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
  if (path.size() > kMaxPath) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                   " characters, the kernel takes ", kMaxPath,
                                                   ": pass a shorter --runtime-dir"));
  }
  GEMINI_RETURN_IF_ERROR(MakeDirectory(folder));
  RuntimeClaim claim;
  claim.lock_path_ = absl::StrCat(folder, "/geminid.lock");
  absl::StatusOr<UniqueFd> lock = TakeLock(claim.lock_path_);
  for (int retry = 0; absl::IsAborted(lock.status()) && retry < 10; ++retry) {
    lock = TakeLock(claim.lock_path_);
  }
  if (!lock.ok()) return lock.status();
  claim.lock_ = *std::move(lock);
  GEMINI_ASSIGN_OR_RETURN(claim.listener_, ListenOn(path));
  claim.socket_path_ = path;
  return claim;
}

RuntimeClaim::~RuntimeClaim() {
  // Empty after a move. The lock file stays: removing it would let two daemons lock two files.
  // Where it is another file by now, so is the socket: another daemon's.
  if (lock_ && IsAt(lock_.get(), lock_path_)) ::unlink(socket_path_.c_str());
}

}  // namespace gemini::server
