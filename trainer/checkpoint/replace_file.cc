// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/replace_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "gemini/files/durable_file.h"
#include "gemini/system/errno_status.h"

namespace gemini::trainer {

absl::Status ReplaceFile(const std::string& path, absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".partial");
  absl::Status status = WriteTextFile(temporary, content);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("rename ", temporary, " to ", path));
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return SyncDirectory(DirectoryOf(path));
}

}  // namespace gemini::trainer
