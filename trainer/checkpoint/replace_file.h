// SPDX-License-Identifier: Apache-2.0
// A small file that changes from its old content to its new one, never through half of it.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

// Writes `path` anew: a temporary file beside it, fsync, rename, fsync of the directory. Blocks on
// the disk. On an error, as of the system call that failed, the former file is as it was.
absl::Status ReplaceFile(const std::string& path, absl::string_view content);

}  // namespace gemini::trainer
