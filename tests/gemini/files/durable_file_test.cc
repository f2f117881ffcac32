// SPDX-License-Identifier: Apache-2.0
#include "gemini/files/durable_file.h"

#include "tests/status_matchers.h"

namespace gemini {
namespace {

TEST(DurableFileTest, ADirectoryThatItsFileSystemCannotSyncIsNoError) {
  EXPECT_OK(SyncDirectory("/proc"));
  EXPECT_OK(SyncDirectory(::testing::TempDir()));
  EXPECT_FALSE(SyncDirectory("/proc/none").ok());
  EXPECT_FALSE(SyncDirectory("/proc/self/stat").ok());
}

}  // namespace
}  // namespace gemini
