// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gemini/files/durable_file.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "trainer/checkpoint/replace_file.h"

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

// The step of a name that a run gave, as "checkpoint-12"; nothing: somebody else gave it, as
// "checkpoint-best" or "checkpoint-012".
std::optional<int64_t> StepOf(absl::string_view name, absl::string_view prefix) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, prefix) || !absl::SimpleAtoi(name, &step) || step < 0 ||
      name != absl::StrCat(step)) {
    return std::nullopt;
  }
  return step;
}

bool IsLeftover(absl::string_view name) {
  // A save that is written appears under ".saving-N" whole (trainer/checkpoint/hf_checkpoint.h).
  return StepOf(absl::StripSuffix(name, ".partial"), kSaving) || StepOf(name, kDeleting) ||
         name == "latest.partial" || name == "run.toml.partial" || name == "metrics.jsonl.partial";
}

bool IsMadeByARun(absl::string_view name) {
  return IsLeftover(name) || StepOf(name, kCheckpoint) || name == kLatest || name == "run.toml" ||
         name == "metrics.jsonl";
}

// What is freed when `path`, a file or a directory, is removed. What cannot be looked at is not
// counted.
int64_t BytesOnDisk(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return 0;
  constexpr int64_t kBlockBytes = 512;  // Of st_blocks, whatever the file system's are.
  int64_t bytes = info.st_blocks * kBlockBytes;
  if (!S_ISDIR(info.st_mode)) return bytes;
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(path);
  if (!names.ok()) return bytes;
  for (const std::string& name : *names) bytes += BytesOnDisk(Inside(path, name));
  return bytes;
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

NewDirectories::~NewDirectories() {
  for (auto path = paths_.rbegin(); path != paths_.rend(); ++path) ::rmdir(path->c_str());
}

absl::Status NewDirectories::Make(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) {
    paths_.push_back(path);
    return absl::OkStatus();
  }
  if (errno == ENOENT && path.size() > 1) {
    GEMINI_RETURN_IF_ERROR(Make(DirectoryOf(path)));
    if (::mkdir(path.c_str(), 0777) == 0) {
      paths_.push_back(path);
      return absl::OkStatus();
    }
  }
  // Somebody else may have made it meanwhile.
  if (errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("make ", path));
}

absl::Status RunDirectory::Lock() {
  lock_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) return ErrnoStatus(errno, absl::StrCat("open --output ", path_));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("lock --output ", path_));
    return absl::FailedPreconditionError(
        absl::StrCat("--output ", path_, ": another gemini-train is running there"));
  }
  // Whoever held it before may have removed it.
  struct stat locked = {}, named = {};
  if (::fstat(lock_.get(), &locked) == 0 && ::stat(path_.c_str(), &named) == 0 &&
      locked.st_dev == named.st_dev && locked.st_ino == named.st_ino) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("--output ", path_, " was removed by another program"));
}

absl::StatusOr<RunDirectory> RunDirectory::Open(const std::string& path, Mode mode) {
  // Each other run removes it once; more in the time of one call are no runs.
  constexpr int kMostTries = 100;
  for (int tries = 1;; ++tries) {
    absl::StatusOr<RunDirectory> run = TryOpen(path, mode);
    if (!absl::IsNotFound(run.status()) || mode == Mode::kResume || tries == kMostTries) return run;
  }
}

absl::StatusOr<RunDirectory> RunDirectory::TryOpen(const std::string& path, Mode mode) {
  RunDirectory run;
  run.path_ = path;
  run.mode_ = mode;
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("--output ", path));
    if (mode == Mode::kResume) {
      return absl::NotFoundError(absl::StrCat("--resume: there is no --output ", path));
    }
    // Without a probe in the directory above: that may be another run's new one by now.
    if (const absl::Status made = run.new_directories_.Make(path); !made.ok()) {
      return absl::Status(made.code(),
                          absl::StrCat("--output ", path, " cannot be written: ", made.message()));
    }
    if (::stat(path.c_str(), &info) != 0)
      return ErrnoStatus(errno, absl::StrCat("--output ", path));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat("--output ", path, " is not a directory"));
  }
  if (const absl::Status status = run.Lock(); !status.ok()) {
    // Another run may hold what this one has made.
    run.new_directories_.Keep();
    return status;
  }
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
    const std::optional<int64_t> step = StepOf(name, kCheckpoint);
    if (step) saved.push_back({*step, Inside(path_, name)});
  }
  std::sort(saved.begin(), saved.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return saved;
}

bool RunDirectory::Removes(absl::string_view name) const {
  return mode_ == Mode::kOverwrite ? IsMadeByARun(name) : IsLeftover(name);
}

absl::Status RunDirectory::CheckRoom(int64_t needed_bytes) const {
  GEMINI_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  int64_t removed_bytes = 0;
  for (const std::string& name : names) {
    if (Removes(name)) removed_bytes += BytesOnDisk(Inside(path_, name));
  }
  return CheckDiskRoom(path_, "the checkpoints of this run (see --keep, --save-every)",
                       std::max<int64_t>(needed_bytes - removed_bytes, 0));
}

absl::StatusOr<PreparedDirectory> RunDirectory::Prepare() {
  GEMINI_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  PreparedDirectory prepared;
  for (const std::string& name : names) {
    if (!Removes(name)) continue;
    const absl::Status removed = RemoveAll(Inside(path_, name));
    // What is not a leftover would be taken for this run's.
    if (!IsLeftover(name)) GEMINI_RETURN_IF_ERROR(removed);
    prepared.housekeeping.Update(removed);
  }
  new_directories_.Keep();
  return prepared;
}

absl::Status RunDirectory::WriteConfig(const std::string& toml) const {
  return ReplaceFile(Inside(path_, "run.toml"), toml);
}

absl::Status RunDirectory::LinkLatest(const std::string& name) const {
  // A link cannot be replaced in place, but renamed over.
  const std::string link = Inside(path_, absl::StrCat(kLatest, ".partial"));
  ::unlink(link.c_str());
  if (::symlink(name.c_str(), link.c_str()) == 0 &&
      ::rename(link.c_str(), Inside(path_, kLatest).c_str()) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("link ", Inside(path_, kLatest), " to ", name));
}

absl::Status RunDirectory::RemoveOld(int64_t keep, const std::string& newest) const {
  if (keep == 0) return absl::OkStatus();
  GEMINI_ASSIGN_OR_RETURN(const std::vector<SavedCheckpoint> saved, Checkpoints());
  absl::Status first;
  for (size_t i = 0; i + static_cast<size_t>(keep) < saved.size(); ++i) {
    if (saved[i].path == newest) continue;
    const std::string deleting = Inside(path_, absl::StrCat(kDeleting, saved[i].step));
    if (::rename(saved[i].path.c_str(), deleting.c_str()) != 0) {
      first.Update(ErrnoStatus(errno, absl::StrCat("rename ", saved[i].path)));
      continue;
    }
    first.Update(RemoveAll(deleting));
  }
  return first;
}

absl::StatusOr<SaveResult> RunDirectory::Save(
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
  SaveResult result = {.path = final_path, .housekeeping = LinkLatest(name)};
  // The new one is on the disk before an old one goes.
  GEMINI_RETURN_IF_ERROR(SyncDirectory(path_));
  result.housekeeping.Update(RemoveOld(keep, final_path));
  return result;
}

}  // namespace gemini::trainer
