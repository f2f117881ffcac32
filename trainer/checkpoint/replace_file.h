// SPDX-License-Identifier: Apache-2.0
// Replaces a small file so that it has its old content or its new one, never half of it.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

// Writes `path` anew: a temporary file beside it, fsync, rename, fsync of the directory. Blocks on
// the disk. On an error, that of the system call that failed, the former file is unchanged.
absl::Status ReplaceFile(const std::string& path, absl::string_view content);

}  // namespace gemini::trainer
