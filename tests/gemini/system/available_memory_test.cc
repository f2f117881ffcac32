// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/available_memory.h"

#include <unistd.h>

#include "tests/status_matchers.h"

namespace gemini {
namespace {

// What is free changes from one look to the next: only that it is in bytes can be told.
TEST(AvailableMemoryTest, IsAPartOfTheMachinesMemoryInBytes) {
  const int64_t total_bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  ASSERT_OK_AND_ASSIGN(const int64_t available_bytes, AvailableMemory());
  EXPECT_LT(available_bytes, total_bytes);
  EXPECT_GT(available_bytes, total_bytes / 1024);
}

}  // namespace
}  // namespace gemini
