// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/unique_fd.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <type_traits>
#include <utility>

#include "gtest/gtest.h"

namespace gemini {
namespace {

static_assert(!std::is_copy_constructible_v<UniqueFd> && !std::is_copy_assignable_v<UniqueFd>);

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

UniqueFd NewFd() { return UniqueFd(::eventfd(0, EFD_CLOEXEC)); }

TEST(UniqueFdTest, TheDescriptorIsClosedWhenItsOwnerGoes) {
  int fd;
  {
    const UniqueFd owner = NewFd();
    fd = owner.get();
    EXPECT_TRUE(owner);
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(UniqueFdTest, MovingHandsTheDescriptorOver) {
  UniqueFd first = NewFd();
  const int fd = first.get();
  UniqueFd second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): its emptiness is the promise.
  EXPECT_EQ(second.get(), fd);
  UniqueFd third = NewFd();
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(fd));
}

TEST(UniqueFdTest, MovingToItselfKeepsTheDescriptor) {
  UniqueFd owner = NewFd();
  UniqueFd& same = owner;
  owner = std::move(same);
  EXPECT_TRUE(IsOpen(owner.get()));
}

TEST(UniqueFdTest, AReleasedDescriptorStaysOpenAndAResetOneDoesNot) {
  UniqueFd owner = NewFd();
  const int fd = owner.Release();
  EXPECT_FALSE(owner);
  EXPECT_TRUE(IsOpen(fd));
  UniqueFd again(fd);
  again.Reset();
  EXPECT_FALSE(IsOpen(fd));
  again.Reset();  // Nothing left to close.
}

}  // namespace
}  // namespace gemini
