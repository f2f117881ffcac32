// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/runtime_directory.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace gemini {

std::string DefaultRuntimeDirectory() {
  const char* user_directory = std::getenv("XDG_RUNTIME_DIR");
  if (user_directory == nullptr || *user_directory == '\0') return "/run/gemini";
  return absl::StrCat(user_directory, "/gemini");
}

std::string DefaultStateDirectory() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string given = variable("STATE_DIRECTORY"); !given.empty()) return given;
  const std::string user_directory = variable("XDG_STATE_HOME");
  return user_directory.empty() ? "/var/lib/gemini" : absl::StrCat(user_directory, "/gemini");
}

std::string DefaultSocketPath() {
  return absl::StrCat(DefaultRuntimeDirectory(), "/", kSocketName);
}

}  // namespace gemini
