// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/runtime_directory.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(RuntimeDirectoryTest, FollowsTheUsersRuntimeDirectory) {
  ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(DefaultRuntimeDirectory(), "/run/user/7/gemini");
  EXPECT_EQ(DefaultSocketPath(), "/run/user/7/gemini/geminid.sock");
}

TEST(RuntimeDirectoryTest, FallsBackToTheSystemsWhenUnsetOrEmpty) {
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DefaultSocketPath(), "/run/gemini/geminid.sock");
  ::setenv("XDG_RUNTIME_DIR", "", 1);
  EXPECT_EQ(DefaultSocketPath(), "/run/gemini/geminid.sock");
}

}  // namespace
}  // namespace gemini
