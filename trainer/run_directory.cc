// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gemini/errno_status.h"
#include "gemini/status_macros.h"
#include "trainer/durable_file.h"
#include "trainer/replace_file.h"

namespace gemini::trainer {
namespace {

constexpr absl::string_view kCheckpoint = "checkpoint-";
constexpr absl::string_view kSaving = ".saving-";
constexpr absl::string_view kDeleting = ".deleting-";
constexpr char kLatest[] = "latest";

std::string Inside(const std::string& directory, absl::string_view name) {
  return absl::StrCat(directory, "/", name);
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", directory));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("remove ", path));
  return absl::OkStatus();
}

bool IsLeftover(absl::string_view name) {
  return absl::StartsWith(name, kSaving) || absl::StartsWith(name, kDeleting) ||
         name == "latest.partial" || name == "run.toml.partial" || name == "metrics.jsonl.partial";
}

bool IsMadeByARun(absl::string_view name) {
  return IsLeftover(name) || absl::StartsWith(name, kCheckpoint) || name == kLatest ||
         name == "run.toml" || name == "metrics.jsonl";
}

// The directory, or the nearest one above it that exists.
std::string Existing(const std::string& path) {
  std::string existing = path;
  while (::access(existing.c_str(), F_OK) != 0 && existing.size() > 1) {
    existing = DirectoryOf(existing);
  }
  return existing;
}

// Makes and removes a directory: permission bits do not tell what a file system or root may do.
absl::Status CheckWritable(const std::string& directory, const std::string& what) {
  std::string probe = Inside(directory, ".gemini-probe-XXXXXX");
  if (::mkdtemp(probe.data()) == nullptr) {
    return ErrnoStatus(errno,
                       absl::StrCat(what, " cannot be written: make a directory in ", directory));
  }
  if (::rmdir(probe.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat("remove ", probe));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDirectory::Lock() {
  lock_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) return ErrnoStatus(errno, absl::StrCat("open --output ", path_));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat("--output ", path_, ": another gemini-train is running there"));
  }
  return ErrnoStatus(errno, absl::StrCat("lock --output ", path_));
}

absl::StatusOr<RunDirectory> RunDirectory::Open(const std::string& path, Mode mode) {
  RunDirectory run;
  run.path_ = path;
  run.mode_ = mode;
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("--output ", path));
    if (mode == Mode::kResume) {
      return absl::NotFoundError(absl::StrCat("--resume: there is no --output ", path));
    }
    GEMINI_RETURN_IF_ERROR(CheckWritable(Existing(path), absl::StrCat("--output ", path)));
    return run;
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat("--output ", path, " is not a directory"));
  }
  GEMINI_RETURN_IF_ERROR(run.Lock());
  GEMINI_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path));
  if (mode == Mode::kNew && !names.empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat("--output ", path, " is not empty (", names.front(), ", ", names.size(),
                     " in all): give another one, --resume to go on, or --overwrite"));
  }
  if (mode == Mode::kResume) {
    GEMINI_ASSIGN_OR_RETURN(const std::vector<SavedCheckpoint> saved, run.Checkpoints());
    if (saved.empty()) {
      return absl::NotFoundError(
          absl::StrCat("--resume: no checkpoint in ", path, ": start again with --overwrite"));
    }
  }
  GEMINI_RETURN_IF_ERROR(CheckWritable(path, absl::StrCat("--output ", path)));
  return run;
}

absl::StatusOr<std::vector<SavedCheckpoint>> RunDirectory::Checkpoints() const {
  GEMINI_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  std::vector<SavedCheckpoint> saved;
  for (const std::string& name : names) {
    int64_t step = 0;
    if (!absl::StartsWith(name, kCheckpoint)) continue;
    if (!absl::SimpleAtoi(absl::string_view(name).substr(kCheckpoint.size()), &step)) continue;
    saved.push_back({step, Inside(path_, name)});
  }
  std::sort(saved.begin(), saved.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return saved;
}

absl::Status RunDirectory::CheckRoom(int64_t needed_bytes) const {
  return CheckDiskRoom(Existing(path_), "the checkpoints of this run (see --keep, --save-every)",
                       needed_bytes);
}

absl::Status RunDirectory::Prepare() {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("make --output ", path_));
  if (!lock_) GEMINI_RETURN_IF_ERROR(Lock());
  GEMINI_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  for (const std::string& name : names) {
    const bool goes = mode_ == Mode::kOverwrite ? IsMadeByARun(name) : IsLeftover(name);
    if (goes) GEMINI_RETURN_IF_ERROR(RemoveAll(Inside(path_, name)));
  }
  return absl::OkStatus();
}

absl::Status RunDirectory::WriteConfig(const std::string& toml) const {
  return ReplaceFile(Inside(path_, "run.toml"), toml);
}

absl::StatusOr<std::string> RunDirectory::Save(
    int64_t step, int64_t keep, absl::FunctionRef<absl::Status(const std::string&)> write) {
  const std::string saving = Inside(path_, absl::StrCat(kSaving, step));
  const std::string name = absl::StrCat(kCheckpoint, step);
  const std::string final_path = Inside(path_, name);
  absl::Status status = RemoveAll(saving);
  if (status.ok()) status = write(saving);
  if (status.ok()) status = SyncDirectory(saving);
  if (status.ok() && ::rename(saving.c_str(), final_path.c_str()) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("rename ", saving, " to ", final_path));
  }
  if (!status.ok()) {
    RemoveAll(saving).IgnoreError();  // The error that matters is the first.
    return status;
  }
  // A link cannot be replaced in place, but renamed over.
  const std::string link = Inside(path_, absl::StrCat(kLatest, ".partial"));
  ::unlink(link.c_str());
  if (::symlink(name.c_str(), link.c_str()) != 0 ||
      ::rename(link.c_str(), Inside(path_, kLatest).c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("link ", Inside(path_, kLatest), " to ", name));
  }
  // The new one is on the disk before an old one goes.
  GEMINI_RETURN_IF_ERROR(SyncDirectory(path_));
  if (keep == 0) return final_path;
  GEMINI_ASSIGN_OR_RETURN(const std::vector<SavedCheckpoint> saved, Checkpoints());
  for (size_t i = 0; i + static_cast<size_t>(keep) < saved.size(); ++i) {
    if (saved[i].path == final_path) continue;
    const std::string deleting = Inside(path_, absl::StrCat(kDeleting, saved[i].step));
    if (::rename(saved[i].path.c_str(), deleting.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("rename ", saved[i].path));
    }
    GEMINI_RETURN_IF_ERROR(RemoveAll(deleting));
  }
  return final_path;
}

}  // namespace gemini::trainer
