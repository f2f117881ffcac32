// SPDX-License-Identifier: Apache-2.0
// The output directory of a run:
//     run.toml            the resolved configuration
//     metrics.jsonl       unless --metrics says otherwise
//     checkpoint-<step>/  a Hugging Face checkpoint with the state to resume; complete or not there
//     latest              a link to the newest checkpoint
// A checkpoint is made under ".saving-<step>" and renamed; one that goes is renamed to
// ".deleting-<step>" first. What a dead run left under such names is removed by Prepare.
// Owner:  one thread; and one process: the directory is locked (flock) while this lives.
// Blocks: on the disk.
// Errors: as the system call that failed, with the path.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemini/unique_fd.h"

namespace gemini::trainer {

struct SavedCheckpoint {
  int64_t step = 0;
  std::string path;
};

class RunDirectory {
 public:
  enum class Mode : uint8_t { kNew, kOverwrite, kResume };

  // Looks only: nothing stays made or removed, so that a run that is refused leaves no trace.
  // ALREADY_EXISTS: kNew, and the directory is not empty. NOT_FOUND: kResume, and there is no
  // checkpoint; or the place cannot be written. PERMISSION_DENIED: likewise.
  // FAILED_PRECONDITION: another run holds it.
  static absl::StatusOr<RunDirectory> Open(const std::string& path, Mode mode);

  const std::string& path() const { return path_; }

  // The complete checkpoints by rising step.
  absl::StatusOr<std::vector<SavedCheckpoint>> Checkpoints() const;

  // RESOURCE_EXHAUSTED: fewer than `needed_bytes` are free where the directory is or will be.
  absl::Status CheckRoom(int64_t needed_bytes) const;

  // Makes the directory; removes leftovers, and with kOverwrite all that a run made (no other
  // files).
  absl::Status Prepare();

  absl::Status WriteConfig(const std::string& toml) const;

  // Has `write` fill a directory, whose path it gets and which is not there yet, then makes it
  // checkpoint-<step>, points `latest` to it and removes all but the newest `keep` checkpoints (0:
  // keeps all). On an error of `write` what it made is removed. Returns the checkpoint's path.
  absl::StatusOr<std::string> Save(int64_t step, int64_t keep,
                                   absl::FunctionRef<absl::Status(const std::string&)> write);

 private:
  RunDirectory() = default;
  absl::Status Lock();

  std::string path_;
  Mode mode_ = Mode::kNew;
  UniqueFd lock_;
};

}  // namespace gemini::trainer
