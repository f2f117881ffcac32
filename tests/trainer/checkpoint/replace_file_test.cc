// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/replace_file.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

TEST(ReplaceFile, TheOldContentStaysUntilTheNewIsWhole) {
  std::string directory = ::testing::TempDir() + "replace_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/file";
  ASSERT_OK(ReplaceFile(path, "one"));
  ASSERT_OK(ReplaceFile(path, "two"));
  const auto content = [&] {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  EXPECT_EQ(content(), "two");
  // The temporary name is taken by a directory: the write fails, the file stays.
  std::filesystem::create_directory(path + ".partial");
  EXPECT_FALSE(ReplaceFile(path, "three").ok());
  EXPECT_EQ(content(), "two");
  std::filesystem::remove_all(directory);
}

TEST(ReplaceFile, AMissingDirectoryIsNotFound) {
  EXPECT_THAT(ReplaceFile(::testing::TempDir() + "none/at/all", "x"),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace gemini::trainer
