// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/sealed_memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <thread>

#include "tests/server/denied_calls.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int64_t kSize = 4096;
constexpr int kSealExec = 0x20;  // Headers before Linux 6.3 have no name for it.

bool KernelHasThem() {
  constexpr unsigned kNoExecSeal = 8;
  return static_cast<bool>(UniqueFd(::memfd_create("asked", MFD_CLOEXEC | kNoExecSeal)));
}

void ExpectMemfds() {
  EXPECT_OK(MakeSealedMemfd("sealed", kSize, MemfdPages::kAllocated));
  EXPECT_OK(MakeServerWritableMemfd("writable", kSize));
  EXPECT_OK(MakeReadOnlyMemfd("read-only", "bytes"));
}

// Memory that peers map holds no program.
TEST(SealedMemfdTest, ItCanNeverBeExecuted) {
  if (!KernelHasThem()) GTEST_SKIP() << "a kernel before Linux 6.3";
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeSealedMemfd("sealed", kSize, MemfdPages::kOnDemand));
  EXPECT_NE(::fcntl(fd.get(), F_GET_SEALS) & kSealExec, 0);
  struct stat info;
  ASSERT_EQ(::fstat(fd.get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0111, 0u);
  EXPECT_NE(::fchmod(fd.get(), 0700), 0);
}

TEST(SealedMemfdTest, AKernelThatDoesNotKnowThatMakesThemStill) {
  std::thread([] {
    DenyMemfdsWithoutExec();
    ExpectMemfds();
  }).join();
}

TEST(SealedMemfdTest, AKernelThatTakesNoOthersMakesThem) {
  if (!KernelHasThem()) GTEST_SKIP() << "a kernel before Linux 6.3";
  std::thread([] {
    DenyMemfdsWithExec();
    ExpectMemfds();
  }).join();
}

TEST(SealedMemfdTest, WhereNoneIsMadeTheMessageNamesTheSetting) {
  std::thread([] {
    DenyMemfdsWithoutExec();
    DenyMemfdsWithExec();
    EXPECT_THAT(
        MakeSealedMemfd("sealed", kSize, MemfdPages::kOnDemand),
        StatusIs(absl::StatusCode::kPermissionDenied, ::testing::HasSubstr("vm.memfd_noexec")));
  }).join();
}

}  // namespace
}  // namespace gemini::server
