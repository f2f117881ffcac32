// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/update_team.h"

#include "gemini/system/numa_nodes.h"
#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(UpdateTeamTest, HalfOfTheProcessorsFromOneToSixteen) {
  EXPECT_EQ(DefaultUpdateThreads(0), 1);
  EXPECT_EQ(DefaultUpdateThreads(1), 1);
  EXPECT_EQ(DefaultUpdateThreads(3), 1);
  EXPECT_EQ(DefaultUpdateThreads(16), 8);
  EXPECT_EQ(DefaultUpdateThreads(32), 16);
  EXPECT_EQ(DefaultUpdateThreads(256), 16);
}

TEST(UpdateTeamTest, ZeroIsTheDefaultOfTheProcessorsAllowed) {
  EXPECT_EQ(MakeUpdateTeam(0)->num_threads(),
            DefaultUpdateThreads(static_cast<int>(AllowedProcessors().size())));
  EXPECT_EQ(MakeUpdateTeam(1)->num_threads(), 1);
  EXPECT_EQ(MakeUpdateTeam(5)->num_threads(), 5);
}

}  // namespace
}  // namespace gemini
