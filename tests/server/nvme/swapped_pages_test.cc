// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/swapped_pages.h"

#include <sys/mman.h>

#include "gemini/layout.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/unique_fd.h"
#include "server/tiers/sealed_memfd.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

TEST(SwappedPagesTest, OnlyPagesThatAreOnTheSwapDeviceAreSwappedOut) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd slab,
                       MakeSealedMemfd("slab", 8 * kPageBytes, MemfdPages::kOnDemand));
  EXPECT_FALSE(IsSwappedOut(slab.get(), 0, 8 * kPageBytes));  // Never made.
  ASSERT_OK_AND_ASSIGN(
      const MappedMemory memory,
      MappedMemory::Map(slab.get(), 8 * kPageBytes, MappedMemory::Access::kReadWrite));
  for (int page = 0; page < 8; ++page) memory.data()[page * kPageBytes] = std::byte{1};
  EXPECT_FALSE(IsSwappedOut(slab.get(), 0, 8 * kPageBytes));
  std::byte* const fourth = memory.data() + 4 * kPageBytes;
  if (::madvise(fourth, kPageBytes, MADV_PAGEOUT) != 0 ||
      !IsSwappedOut(slab.get(), 4 * kPageBytes, kPageBytes)) {
    GTEST_SKIP() << "no swap here, or Linux before 6.5";
  }
  EXPECT_TRUE(IsSwappedOut(slab.get(), 0, 8 * kPageBytes));
  EXPECT_FALSE(IsSwappedOut(slab.get(), 0, 4 * kPageBytes));
  EXPECT_FALSE(IsSwappedOut(slab.get(), 5 * kPageBytes, 3 * kPageBytes));
  EXPECT_EQ(*fourth, std::byte{1});
  EXPECT_FALSE(IsSwappedOut(slab.get(), 0, 8 * kPageBytes));
}

}  // namespace
}  // namespace gemini::server
