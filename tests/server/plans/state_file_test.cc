// SPDX-License-Identifier: Apache-2.0
#include "server/plans/state_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StateFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/state-XXXXXX";
    parent_ = ::mkdtemp(name.data());
    directory_ = parent_ + "/a/b";
    ASSERT_OK(MakeStateDirectory(directory_));
  }
  void TearDown() override { std::filesystem::remove_all(parent_); }
  std::string parent_;
  std::string directory_;
};

TEST_F(StateFileTest, AFileIsReplacedWholeAndIsItsOwnersAlone) {
  ASSERT_OK(WriteStateFile(directory_, "one", "first"));
  ASSERT_OK(WriteStateFile(directory_, "one", std::string(100'000, 'x')));
  ASSERT_OK(WriteStateFile(directory_, "one", "last"));
  EXPECT_THAT(ReadStateFile(directory_, "one", 10), IsOkAndHolds(std::string("last")));
  struct stat info;
  ASSERT_EQ(::stat((directory_ + "/one").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(StateFileTest, WhatIsTooLargeOrNoFileIsNotRead) {
  ASSERT_OK(WriteStateFile(directory_, "large", "12345678901"));
  EXPECT_THAT(ReadStateFile(directory_, "large", 10),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("11 bytes")));
  EXPECT_THAT(ReadStateFile(directory_, "none", 10), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_EQ(::mkfifo((directory_ + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(ReadStateFile(directory_, "pipe", 10),
              StatusIs(absl::StatusCode::kInvalidArgument));  // And does not wait for a writer.
  std::filesystem::create_symlink(directory_ + "/large", directory_ + "/link");
  EXPECT_FALSE(ReadStateFile(directory_, "link", 100).ok());
}

TEST_F(StateFileTest, TheLatestComeFirstAndLeftoversOfACrashGo) {
  ASSERT_OK(WriteStateFile(directory_, "old.t", "1"));
  ASSERT_OK(WriteStateFile(directory_, "new.t", "2"));
  ASSERT_OK(WriteStateFile(directory_, "other", "3"));
  const auto now = std::filesystem::last_write_time(directory_ + "/new.t");
  std::filesystem::last_write_time(directory_ + "/old.t", now - std::chrono::hours(1));
  std::ofstream(directory_ + "/half.t.unfinished") << "x";
  EXPECT_THAT(ListStateFiles(directory_, ".t"), ElementsAre("new.t", "old.t"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/half.t.unfinished"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/other"));
}

TEST_F(StateFileTest, WhatCannotBeWrittenLeavesTheOldFile) {
  ASSERT_OK(WriteStateFile(directory_, "one", "old"));
  std::filesystem::create_directory(directory_ + "/one.unfinished");
  EXPECT_FALSE(WriteStateFile(directory_, "one", "new").ok());
  EXPECT_THAT(ReadStateFile(directory_, "one", 10), IsOkAndHolds(std::string("old")));
}

}  // namespace
}  // namespace gemini::server
