// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/mapped_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gemini/system/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kLargePage = 2 << 20;

UniqueFd NewMemfd(int64_t size_bytes) {
  UniqueFd fd(::memfd_create("mapped_memory_test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
  return fd;
}

// Returns whether the page at `address` is mapped, of any protection, in the calling process.
bool IsMapped(const void* address) {
  unsigned char resident;
  return ::mincore(const_cast<void*>(address), kPage, &resident) == 0 || errno != ENOMEM;
}

// Returns what `probe` says in a forked child.
template <typename Probe>
bool InForkedChild(Probe probe) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(probe() ? 1 : 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST(MappedMemoryTest, TwoMappingsOfADescriptorShareItsBytesAfterItIsClosed) {
  UniqueFd fd = NewMemfd(kPage);
  ASSERT_OK_AND_ASSIGN(MappedMemory writer,
                       MappedMemory::Map(fd.get(), kPage, MappedMemory::Access::kReadWrite));
  ASSERT_OK_AND_ASSIGN(MappedMemory reader,
                       MappedMemory::Map(fd.get(), kPage, MappedMemory::Access::kReadOnly));
  fd.Reset();
  writer.data()[kPage - 1] = std::byte{42};
  EXPECT_EQ(reader.data()[kPage - 1], std::byte{42});
  EXPECT_EQ(reader.size_bytes(), kPage);
}

// The kernel is asked to write there: a death test would see the fault of any mapping, since a
// forked child does not inherit them.
TEST(MappedMemoryTest, AReadOnlyMappingCannotBeWritten) {
  const UniqueFd fd = NewMemfd(kPage);
  ASSERT_OK_AND_ASSIGN(MappedMemory reader,
                       MappedMemory::Map(fd.get(), kPage, MappedMemory::Access::kReadOnly));
  const UniqueFd source = NewMemfd(kPage);
  EXPECT_EQ(::pread(source.get(), reader.data(), 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST(MappedMemoryTest, AForkedChildDoesNotInheritAMapping) {
  const UniqueFd fd = NewMemfd(kPage);
  ASSERT_OK_AND_ASSIGN(MappedMemory memory,
                       MappedMemory::Map(fd.get(), kPage, MappedMemory::Access::kReadWrite));
  const std::byte* data = memory.data();
  EXPECT_TRUE(IsMapped(data));
  EXPECT_FALSE(InForkedChild([data] { return IsMapped(data); }));
}

TEST(MappedMemoryTest, AForkedChildDoesNotInheritWhatFillsAReservation) {
  const UniqueFd fd = NewMemfd(kPage);
  ASSERT_OK_AND_ASSIGN(MappedMemory arena, MappedMemory::Reserve(4 * kPage));
  ASSERT_OK(arena.MapAt(kPage, fd.get(), kPage));
  const std::byte* data = arena.data() + kPage;
  EXPECT_FALSE(InForkedChild([data] { return IsMapped(data); }));
}

// Where pages of that size begin.
TEST(MappedMemoryTest, AReservationBeginsWhereLargePagesDoAndHasNothingBesideIt) {
  for (const int64_t size_bytes : {kPage, 3 * kLargePage, kLargePage + kPage}) {
    std::vector<MappedMemory> arenas;
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK_AND_ASSIGN(MappedMemory arena, MappedMemory::Reserve(size_bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % kLargePage, 0u);
      EXPECT_TRUE(IsMapped(arena.data() + size_bytes - kPage));
      EXPECT_FALSE(IsMapped(arena.data() + size_bytes));
      arenas.push_back(std::move(arena));
    }
  }
}

TEST(MappedMemoryTest, AMappingEndsWithItsOwnerAndNotWithWhatItWasMovedFrom) {
  const UniqueFd fd = NewMemfd(kPage);
  const std::byte* data = nullptr;
  {
    MappedMemory outer;
    {
      ASSERT_OK_AND_ASSIGN(MappedMemory inner,
                           MappedMemory::Map(fd.get(), kPage, MappedMemory::Access::kReadWrite));
      data = inner.data();
      outer = std::move(inner);
    }
    EXPECT_TRUE(IsMapped(data));
    const MappedMemory last(std::move(outer));
    EXPECT_EQ(last.data(), data);
    EXPECT_EQ(outer.data(), nullptr);  // NOLINT(bugprone-use-after-move): the promise.
  }
  EXPECT_FALSE(IsMapped(data));
}

TEST(MappedMemoryTest, AssigningOverAMappingEndsIt) {
  const UniqueFd fd = NewMemfd(kPage);
  ASSERT_OK_AND_ASSIGN(MappedMemory memory,
                       MappedMemory::Map(fd.get(), kPage, MappedMemory::Access::kReadWrite));
  const std::byte* data = memory.data();
  memory = MappedMemory();
  EXPECT_FALSE(IsMapped(data));
  EXPECT_EQ(memory.data(), nullptr);
}

TEST(MappedMemoryTest, SlabsFillAReservationSideBySide) {
  const UniqueFd first = NewMemfd(kPage);
  const UniqueFd second = NewMemfd(2 * kPage);
  ASSERT_OK_AND_ASSIGN(MappedMemory arena, MappedMemory::Reserve(8 * kPage));
  ASSERT_OK(arena.MapAt(0, first.get(), kPage));
  ASSERT_OK(arena.MapAt(kPage, second.get(), 2 * kPage));
  std::memset(arena.data(), 7, 3 * kPage);
  char byte = 0;
  ASSERT_EQ(::pread(second.get(), &byte, 1, 2 * kPage - 1), 1);
  EXPECT_EQ(byte, 7);
}

TEST(MappedMemoryDeathTest, AReservationThatWasNotFilledFaults) {
  ASSERT_OK_AND_ASSIGN(MappedMemory arena, MappedMemory::Reserve(kPage));
  EXPECT_EXIT(*reinterpret_cast<volatile char*>(arena.data()) = 1,
              ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(MappedMemoryTest, ADescriptorThatIsTooShortIsAStatusAndNoFaultLater) {
  const UniqueFd fd = NewMemfd(kPage + 1);
  const auto is_refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                   ::testing::HasSubstr("4097 bytes where 4098 are"));
  EXPECT_THAT(MappedMemory::Map(fd.get(), kPage + 2, MappedMemory::Access::kReadOnly), is_refused);
  ASSERT_OK_AND_ASSIGN(MappedMemory arena, MappedMemory::Reserve(4 * kPage));
  EXPECT_THAT(arena.MapAt(0, fd.get(), kPage + 2), is_refused);
  EXPECT_OK(MappedMemory::Map(fd.get(), kPage + 1, MappedMemory::Access::kReadOnly));
}

TEST(MappedMemoryTest, WhatTheKernelRefusesIsAStatus) {
  const UniqueFd fd = NewMemfd(kPage);
  EXPECT_THAT(MappedMemory::Map(-1, kPage, MappedMemory::Access::kReadOnly),
              ::testing::Not(IsOk()));
  EXPECT_THAT(MappedMemory::Map(fd.get(), 0, MappedMemory::Access::kReadOnly),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MappedMemory::Map(fd.get(), -1, MappedMemory::Access::kReadOnly),
              ::testing::Not(IsOk()));
  EXPECT_THAT(MappedMemory::Reserve(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace gemini
