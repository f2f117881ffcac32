// SPDX-License-Identifier: Apache-2.0
// Manages the output directory of a run:
//     run.toml            the resolved configuration
//     metrics.jsonl       unless --metrics says otherwise
//     checkpoint-<step>/  a Hugging Face checkpoint with the state to resume; complete or not there
//     latest              a link to the newest checkpoint
// A checkpoint is made under ".saving-<step>.partial", then ".saving-<step>", and renamed; one that
// goes is renamed to ".deleting-<step>" first. What a dead run left under such names is removed by
// Prepare.
// Owner:  one thread; and one process: the directory is locked (flock) while this lives.
// Blocks: on the disk.
// Errors: as the system call that failed, with the path.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/unique_fd.h"

namespace gemini::trainer {

// Directories that are removed again, where nothing was put into them, unless they are kept.
class NewDirectories {
 public:
  NewDirectories() = default;
  ~NewDirectories();
  NewDirectories(NewDirectories&& other) noexcept : paths_(std::exchange(other.paths_, {})) {}
  NewDirectories& operator=(NewDirectories&&) = delete;

  // Makes `path` and what is missing above it.
  absl::Status Make(const std::string& path);
  void Keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;  // The outermost first.
};

// What came of a save.
struct SaveResult {
  std::string path;           // Of the checkpoint, complete and on the disk.
  absl::Status housekeeping;  // Why `latest` is not set, or an old checkpoint not removed.
};

// What came of making the directory ready.
struct PreparedDirectory {
  absl::Status housekeeping;  // Why a dead run's leftover is not removed.
};

struct SavedCheckpoint {
  int64_t step = 0;
  std::string path;
};

class RunDirectory {
 public:
  enum class Mode : uint8_t { kNew, kOverwrite, kResume };

  // Looks only: nothing stays made or removed, so that a run that is refused leaves no trace. A
  // directory that is missing is there from now on, and locked, but goes again unless Prepare was
  // called. Of runs that open one new directory at once, one has it and the others are refused.
  // ALREADY_EXISTS: kNew, and the directory is not empty. NOT_FOUND: kResume, and there is no
  // checkpoint; or the place cannot be written. PERMISSION_DENIED: likewise.
  // FAILED_PRECONDITION: another run holds it.
  static absl::StatusOr<RunDirectory> Open(const std::string& path, Mode mode);

  const std::string& path() const { return path_; }

  // The complete checkpoints by rising step.
  absl::StatusOr<std::vector<SavedCheckpoint>> Checkpoints() const;

  // RESOURCE_EXHAUSTED: fewer than `needed_bytes` are free where the directory is, what Prepare
  // removes being counted as free.
  absl::Status CheckRoom(int64_t needed_bytes) const;

  // Keeps the directory; removes leftovers, and with kOverwrite all that a run made (no other
  // files). A leftover that stays is told in the result, for it is in nobody's way.
  absl::StatusOr<PreparedDirectory> Prepare();

  absl::Status WriteConfig(const std::string& toml) const;

  // Has `write` fill a directory, whose path it gets and which is not there yet, then makes it
  // checkpoint-<step>, points `latest` to it and removes all but the newest `keep` checkpoints (0:
  // keeps all). On an error of `write` what it made is removed. What fails behind that is told in
  // the result, for the checkpoint is there.
  absl::StatusOr<SaveResult> Save(int64_t step, int64_t keep,
                                  absl::FunctionRef<absl::Status(const std::string&)> write);

 private:
  RunDirectory() = default;
  // Open, but NOT_FOUND also where another run removed the directory meanwhile.
  static absl::StatusOr<RunDirectory> TryOpen(const std::string& path, Mode mode);
  // Locks what is at path_. NOT_FOUND: nothing is there any more.
  absl::Status Lock();
  // Whether Prepare removes what has this name.
  bool Removes(absl::string_view name) const;
  absl::Status LinkLatest(const std::string& name) const;
  absl::Status RemoveOld(int64_t keep, const std::string& newest) const;

  std::string path_;
  Mode mode_ = Mode::kNew;
  // Released behind the removal of new directories: nobody else locks one that is about to go.
  UniqueFd lock_;
  NewDirectories new_directories_;
};

}  // namespace gemini::trainer
