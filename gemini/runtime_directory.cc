// SPDX-License-Identifier: Apache-2.0
#include "gemini/runtime_directory.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace gemini {

std::string DefaultRuntimeDirectory() {
  const char* user_directory = std::getenv("XDG_RUNTIME_DIR");
  if (user_directory == nullptr || *user_directory == '\0') return "/run/gemini";
  return absl::StrCat(user_directory, "/gemini");
}

std::string DefaultSocketPath() { return absl::StrCat(DefaultRuntimeDirectory(), "/", kSocketName); }

}  // namespace gemini
