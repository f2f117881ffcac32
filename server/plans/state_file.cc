// SPDX-License-Identifier: Apache-2.0
#include "server/plans/state_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {
namespace {

// Ends the names of files that are being written.
constexpr absl::string_view kUnfinished = ".unfinished";

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, "write");
    bytes.remove_prefix(written);
  }
  if (::fsync(fd) != 0) return ErrnoStatus(errno, "fsync");
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeStateDirectory(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(directory).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("make state directory ", directory));
  }
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("open state directory ", directory));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> LockStateDirectory(const std::string& directory) {
  // Of this machine: others that share the directory have files of costs of their own.
  char host[256] = {};
  (void)::gethostname(host, sizeof(host) - 1);
  for (char* c = host; *c != '\0'; ++c) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(*c))) *c = '-';
  }
  const std::string path = absl::StrCat(directory, "/lock.", host);
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) return ErrnoStatus(errno, absl::StrCat("make ", path));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("lock ", path));
  return absl::FailedPreconditionError(absl::StrCat("another server has the state directory ",
                                                    directory,
                                                    ": stop it, or pass another --state-dir"));
}

absl::Status WriteStateFile(const std::string& directory, const std::string& name,
                            absl::string_view bytes) {
  const std::string path = absl::StrCat(directory, "/", name);
  const std::string unfinished = absl::StrCat(path, kUnfinished);
  absl::Status status;
  {
    const UniqueFd fd(
        ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) return ErrnoStatus(errno, absl::StrCat("make ", unfinished));
    status = WriteAll(fd.get(), bytes);
  }
  if (status.ok() && ::rename(unfinished.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, "rename");
  }
  if (!status.ok()) {
    ::unlink(unfinished.c_str());
    return absl::Status(status.code(), absl::StrCat("cannot keep ", path, ": ", status.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadStateFile(const std::string& directory, const std::string& name,
                                          int64_t max_bytes) {
  const std::string path = absl::StrCat(directory, "/", name);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("look at ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no plain file"));
  }
  if (info.st_size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", info.st_size, " bytes, at most ", max_bytes));
  }
  std::string bytes(info.st_size, '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (got == 0) break;  // It shrank meanwhile.
    filled += got;
  }
  bytes.resize(filled);
  return bytes;
}

void RemoveStateFile(const std::string& directory, const std::string& name) {
  ::unlink(absl::StrCat(directory, "/", name).c_str());
}

std::vector<std::string> ListStateFiles(const std::string& directory, absl::string_view suffix) {
  std::vector<std::pair<std::filesystem::file_time_type, std::string>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, absl::StrCat(suffix, kUnfinished))) RemoveStateFile(directory, name);
    if (!absl::EndsWith(name, suffix)) continue;
    std::error_code no_time;
    const auto written = entry->last_write_time(no_time);
    if (!no_time) found.emplace_back(written, name);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> names;
  for (auto& [written, name] : found) names.push_back(std::move(name));
  return names;
}

}  // namespace gemini::server
