// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/runtime_directory.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace gemini {
namespace {

class RuntimeDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("RUNTIME_DIRECTORY");
    ::unsetenv("XDG_RUNTIME_DIR");
    std::string name = ::testing::TempDir() + "runtime-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Makes what a client takes for a daemon's socket in that folder, and returns its path.
  static std::string MakeSocketIn(const std::string& folder) {
    std::filesystem::create_directories(folder);
    const std::string path = folder + "/" + kSocketName;
    std::ofstream(path).put('\n');
    return path;
  }

  std::string directory_;
};

TEST_F(RuntimeDirectoryTest, FollowsTheUsersRuntimeDirectory) {
  ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(DefaultRuntimeDirectory(), "/run/user/7/gemini");
  EXPECT_EQ(SocketPathBelow(directory_, directory_ + "/accounts"),
            "/run/user/7/gemini/geminid.sock");
}

TEST_F(RuntimeDirectoryTest, FallsBackToTheSystemsWhenUnsetOrEmpty) {
  EXPECT_EQ(DefaultRuntimeDirectory(), "/run/gemini");
  EXPECT_EQ(SocketPathBelow(directory_, directory_ + "/accounts"), directory_ + "/geminid.sock");
  ::setenv("XDG_RUNTIME_DIR", "", 1);
  EXPECT_EQ(SocketPathBelow(directory_, directory_ + "/accounts"), directory_ + "/geminid.sock");
}

TEST_F(RuntimeDirectoryTest, AServiceHasTheDirectoryThatItsManagerMade) {
  ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  ::setenv("RUNTIME_DIRECTORY", "/run/geminid/alice", 1);
  EXPECT_EQ(DefaultRuntimeDirectory(), "/run/geminid/alice");
}

TEST_F(RuntimeDirectoryTest, AClientFindsTheSystemServiceOfItsUserAndPrefersTheUsersOwn) {
  const passwd* user = ::getpwuid(::geteuid());
  ASSERT_NE(user, nullptr);
  const std::string own_directory = directory_ + "/user";
  ::setenv("XDG_RUNTIME_DIR", own_directory.c_str(), 1);
  const std::string shared = MakeSocketIn(directory_);
  EXPECT_EQ(SocketPathBelow(directory_, directory_ + "/accounts"), shared);
  const std::string of_service = MakeSocketIn(directory_ + "/accounts/" + user->pw_name);
  MakeSocketIn(directory_ + "/accounts/somebody-else");
  EXPECT_EQ(SocketPathBelow(directory_, directory_ + "/accounts"), of_service);
  const std::string own = MakeSocketIn(own_directory + "/gemini");
  EXPECT_EQ(SocketPathBelow(directory_, directory_ + "/accounts"), own);
}

}  // namespace
}  // namespace gemini
