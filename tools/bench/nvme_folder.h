// SPDX-License-Identifier: Apache-2.0
// Makes a folder for the files of one benchmark, and removes it with everything in it.
// Reads: GEMINI_NVME_DIRECTORY, where the folder is made (default: the current directory).
#pragma once
#include <stdlib.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gemini/system/errno_status.h"

namespace gemini {

class NvmeFolder {
 public:
  // Errors: as mkdtemp(3), with the path.
  static absl::StatusOr<std::unique_ptr<NvmeFolder>> Make() {
    const char* const place = std::getenv("GEMINI_NVME_DIRECTORY");
    std::string path = absl::StrCat(place == nullptr ? "." : place, "/gemini-bench-XXXXXX");
    if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, absl::StrCat("make ", path));
    return std::unique_ptr<NvmeFolder>(new NvmeFolder(std::filesystem::absolute(path)));
  }
  NvmeFolder(const NvmeFolder&) = delete;
  NvmeFolder& operator=(const NvmeFolder&) = delete;
  ~NvmeFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit NvmeFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace gemini
