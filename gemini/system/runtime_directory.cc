// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/runtime_directory.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gemini {
namespace {

constexpr char kSystemDirectory[] = "/run/gemini";
// Of packaging/geminid@.service; it has a folder for each account.
constexpr char kAccountsDirectory[] = "/run/geminid";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Empty: the uid has no name.
std::string UserName() {
  std::vector<char> buffer(16 * 1024);  // sysconf(_SC_GETPW_R_SIZE_MAX) suggests 1 KiB.
  passwd entry = {};
  passwd* found = nullptr;
  const int error = ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found);
  return error == 0 && found != nullptr ? found->pw_name : "";
}

}  // namespace

std::string DefaultRuntimeDirectory() {
  if (std::string given = Variable("RUNTIME_DIRECTORY"); !given.empty()) return given;
  const std::string user_directory = Variable("XDG_RUNTIME_DIR");
  return user_directory.empty() ? kSystemDirectory : absl::StrCat(user_directory, "/gemini");
}

std::string DefaultStateDirectory() {
  if (std::string given = Variable("STATE_DIRECTORY"); !given.empty()) return given;
  if (const std::string given = Variable("XDG_STATE_HOME"); !given.empty()) {
    return absl::StrCat(given, "/gemini");
  }
  // As the XDG base directories are where nothing is said.
  const std::string home = Variable("HOME");
  return ::geteuid() == 0 || home.empty() ? "/var/lib/gemini"
                                          : absl::StrCat(home, "/.local/state/gemini");
}

std::string DefaultSocketPath() { return SocketPathBelow(kSystemDirectory, kAccountsDirectory); }

std::string SocketPathBelow(const std::string& system_directory,
                            const std::string& accounts_directory) {
  std::vector<std::string> directories;
  const std::string user_directory = Variable("XDG_RUNTIME_DIR");
  if (!user_directory.empty()) directories.push_back(absl::StrCat(user_directory, "/gemini"));
  const std::string user = UserName();
  if (!user.empty()) directories.push_back(absl::StrCat(accounts_directory, "/", user));
  directories.push_back(system_directory);
  for (const std::string& directory : directories) {
    const std::string path = absl::StrCat(directory, "/", kSocketName);
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return absl::StrCat(user_directory.empty() ? system_directory : directories.front(), "/",
                      kSocketName);
}

}  // namespace gemini
