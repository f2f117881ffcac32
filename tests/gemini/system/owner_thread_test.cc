// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/owner_thread.h"

#include <thread>

#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(OwnerThreadTest, TheConstructingThreadIsTheOwner) {
  const OwnerThread owner;
  owner.AssertHere();
}

TEST(OwnerThreadTest, AdoptHandsOwnershipToTheCallingThread) {
  OwnerThread owner;
  std::thread([&owner] {
    owner.Adopt();
    owner.AssertHere();
  }).join();
  owner.Adopt();
  owner.AssertHere();
}

TEST(OwnerThreadDeathTest, ACallFromAnotherThreadStopsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const OwnerThread owner;
  EXPECT_DEATH(std::thread([&owner] { owner.AssertHere(); }).join(), "broken invariant");
}

TEST(OwnerThreadDeathTest, TheFormerOwnerIsAnotherThreadAfterAdopt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        OwnerThread owner;
        std::thread([&owner] { owner.Adopt(); }).join();
        owner.AssertHere();
      },
      "broken invariant");
}

}  // namespace
}  // namespace gemini
