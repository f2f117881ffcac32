// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/interleaved_pages.h"

#include <numaif.h>

#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "server/tiers/tier_store_host.h"
#include "tests/server/denied_calls.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Of the calling thread; -1: it may not ask.
int Policy() {
  int policy = -1;
  return ::get_mempolicy(&policy, nullptr, 0, nullptr, 0) == 0 ? policy : -1;
}

// Each test has a thread of its own, whose policy and filters end with it.
template <typename Function>
void OnAThread(const Function& function) {
  std::thread(function).join();
}

// A node that every machine has, and whose memory this process may use.
const std::vector<int> kNodes = {0};

TEST(InterleavedPagesTest, TheScopeHasThePolicyAndGivesItBack) {
  if (Policy() < 0) GTEST_SKIP() << "get_mempolicy is denied here";
  OnAThread([] {
    const int before = Policy();
    if (before != MPOL_DEFAULT) return;  // The machine's owner chose one: the next test.
    {
      const InterleavedPages interleaved(kNodes);
      EXPECT_EQ(Policy(), interleaved.is_active() ? MPOL_INTERLEAVE : MPOL_DEFAULT);
      EXPECT_TRUE(interleaved.is_active() || errno == EPERM);
    }
    EXPECT_EQ(Policy(), MPOL_DEFAULT);
  });
}

TEST(InterleavedPagesTest, AThreadsOwnPolicyStays) {
  OnAThread([] {
    const unsigned long node_0 = 1;
    if (::set_mempolicy(MPOL_BIND, &node_0, 8) != 0) return;  // Denied: there is none to keep.
    {
      const InterleavedPages interleaved(kNodes);
      EXPECT_FALSE(interleaved.is_active());
      EXPECT_EQ(Policy(), MPOL_BIND);
    }
    EXPECT_EQ(Policy(), MPOL_BIND);
  });
}

// A process that sets a policy all the same dies here.
TEST(InterleavedPagesDeathTest, OnOneNodeNothingIsCalled) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        InstallFilter<4>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                           {kJumpIfEqual, 0, 1, SYS_set_mempolicy},
                           {kReturn, 0, 0, SECCOMP_RET_KILL_PROCESS},
                           {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
        { const InterleavedPages interleaved({}); }
        if (NodesOfSlabs().empty()) {
          const auto store = MakeHostTierStore(1 << 20);
          auto grant = store->Make(4096, 4);
          if (!grant.ok()) std::exit(1);
          store->Destroy(*std::move(grant));
        }
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(InterleavedPagesDeathTest, ARefusalIsLoggedOnceAndChangesNothingElse) {
  if (Policy() != MPOL_DEFAULT) GTEST_SKIP() << "get_mempolicy is denied here, or a policy is set";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        DenyMemoryPolicies();
        int failures = 0;
        for (int i = 0; i < 3; ++i) {
          const InterleavedPages interleaved(kNodes);
          failures += interleaved.is_active() || Policy() != MPOL_DEFAULT;
        }
        std::exit(failures);  // With what is left of the log.
      },
      ::testing::ExitedWithCode(0),
      AllOf(HasSubstr("set_mempolicy: Operation not permitted"),
            Not(ContainsRegex("not spread.*\n.*not spread"))));
}

TEST(InterleavedPagesTest, SlabsAreMadeWhereNoPolicyIsAllowed) {
  OnAThread([] {
    DenyMemoryPolicies();
    const auto store = MakeHostTierStore(1 << 20);
    auto grant = store->Make(4096, 4);
    ASSERT_OK(grant);
    store->Destroy(*std::move(grant));
  });
}

}  // namespace
}  // namespace gemini::server
