// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/mapped_memory.h"
#include "server/tiers/sealed_memfd.h"
#include "tests/server/denied_calls.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

int64_t AllocatedBytes(const UniqueFd& fd) {
  struct stat info = {};
  EXPECT_EQ(::fstat(fd.get(), &info), 0);
  return info.st_blocks * 512;
}

UniqueFd NewMemfd(int64_t size_bytes) {
  UniqueFd fd(::memfd_create("huge", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
  return fd;
}

// Whether the kernel makes a huge page of memory when it is asked: tried with memory that is no
// memfd's.
bool KernelHasHugePages() {
  constexpr int kCollapse = 25;  // Headers before Linux 6.1 have no name for it.
  void* const memory = ::mmap(nullptr, 2 * kHugePageBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto place = reinterpret_cast<uintptr_t>(memory);
  auto* const page = reinterpret_cast<char*>((place | (kHugePageBytes - 1)) + 1);
  *page = 1;
  const bool has = ::madvise(page, kHugePageBytes, kCollapse) == 0;
  ::munmap(memory, 2 * kHugePageBytes);
  return has;
}

// Of the mapping that begins at `begin`, as /proc/self/smaps has it.
int64_t HugeBytesMapped(const std::byte* begin) {
  const std::string head = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(begin)), "-");
  std::ifstream smaps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(head)) found = true;
    if (!found || !line.starts_with("ShmemPmdMapped:")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kib = 0;
    EXPECT_TRUE(absl::SimpleAtoi(words[1], &kib)) << line;
    return kib * kKiB;
  }
  ADD_FAILURE() << "no mapping begins at " << static_cast<const void*>(begin);
  return 0;
}

TEST(HugePagesTest, EachWholeHugePageIsOneAndTheRestIsNotTouched) {
  constexpr int64_t kSize = 3 * kHugePageBytes + 5 * kPageBytes;
  if (!KernelHasHugePages()) GTEST_SKIP() << "this kernel gives no huge pages";
  const UniqueFd fd = NewMemfd(kSize);
  EXPECT_EQ(AllocateHugePages(fd.get(), kSize), 3 * kHugePageBytes);
  EXPECT_EQ(AllocatedBytes(fd), 3 * kHugePageBytes);
  // At a multiple of their size the kernel maps them as what they are.
  ASSERT_OK_AND_ASSIGN(MappedMemory room, MappedMemory::Reserve(5 * kHugePageBytes));
  const int64_t begin = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(room.data()) %
                                             static_cast<uintptr_t>(kHugePageBytes));
  ASSERT_OK(room.MapAt(begin, fd.get(), kSize));
  const std::byte* const bytes = room.data() + begin;
  EXPECT_TRUE(std::all_of(bytes, bytes + kSize, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(HugeBytesMapped(bytes), 3 * kHugePageBytes);
}

TEST(HugePagesTest, WhatIsSmallerThanOneHasNone) {
  const UniqueFd fd = NewMemfd(kHugePageBytes - kPageBytes);
  EXPECT_EQ(AllocateHugePages(fd.get(), kHugePageBytes - kPageBytes), 0);
  EXPECT_EQ(AllocatedBytes(fd), 0);
}

TEST(HugePagesTest, AMemfdOfThemHasTheBytesAskedForAndIsSealed) {
  constexpr int64_t kSize = 2 * kHugePageBytes + kPageBytes;
  const auto expect_whole = [&] {
    ASSERT_OK_AND_ASSIGN(UniqueFd fd, MakeSealedMemfd("huge", kSize, MemfdPages::kHuge));
    EXPECT_EQ(AllocatedBytes(fd), kSize);
    constexpr int kSealExec = 0x20;  // Where the kernel has it: Linux 6.3.
    EXPECT_EQ(::fcntl(fd.get(), F_GET_SEALS) & ~kSealExec,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    const UniqueFd kept(::dup(fd.get()));
    DestroyMemfd(std::move(fd), kSize);
    EXPECT_EQ(AllocatedBytes(kept), 0);
  };
  expect_whole();
  std::thread([&] {
    DenyHugePages();
    const UniqueFd fd = NewMemfd(kSize);
    EXPECT_EQ(AllocateHugePages(fd.get(), kSize), 0);
    expect_whole();
  }).join();
}

// The first half of a page that a client gives back is free, the other half still holds its bytes.
TEST(HugePagesTest, APartCanBeGivenBack) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                       MakeSealedMemfd("huge", kHugePageBytes, MemfdPages::kHuge));
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, kHugePageBytes - 1), 1);
  PunchHole(fd.get(), 0, kHugePageBytes / 2);
  EXPECT_EQ(AllocatedBytes(fd), kHugePageBytes / 2);
  char last = 0;
  ASSERT_EQ(::pread(fd.get(), &last, 1, kHugePageBytes - 1), 1);
  EXPECT_EQ(last, 'x');
}

}  // namespace
}  // namespace gemini::server
