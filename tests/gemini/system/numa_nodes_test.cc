// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/numa_nodes.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<int> kAll = {0, 1, 2, 3, 4, 5, 6, 7};

// Two sockets, a node of a GPU's memory, and one without memory.
const std::vector<NumaNode> kMachine = {
    {0, true, {0, 1, 4, 5}}, {1, true, {2, 3, 6}}, {2, true, {}}, {4, false, {7}}};

TEST(NumaNodesTest, MemoryGoesToTheNodesThatHaveMemoryAndProcessors) {
  EXPECT_THAT(NodesToInterleave(kMachine), ElementsAre(0, 1));
}

TEST(NumaNodesTest, OneNodeIsNothingToSpreadMemoryOver) {
  EXPECT_THAT(NodesToInterleave({}), IsEmpty());
  EXPECT_THAT(NodesToInterleave({{0, true, {0, 1}}}), IsEmpty());
  EXPECT_THAT(NodesToInterleave({{0, true, {0, 1}}, {1, true, {}}}), IsEmpty());
  // A cpuset that gives one node's memory.
  EXPECT_THAT(NodesToInterleave({{0, true, {0, 1}}, {1, false, {2, 3}}}), IsEmpty());
}

TEST(NumaNodesTest, ThreadsTakeTheNodesInTurn) {
  EXPECT_THAT(PlacesOfThreads(kMachine, kAll, 5),
              ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6), ElementsAre(7),
                          ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6)));
}

TEST(NumaNodesTest, ThreadsStayOnTheProcessorsThatTheProcessMayUse) {
  EXPECT_THAT(PlacesOfThreads(kMachine, std::vector<int>{1, 3, 6}, 3),
              ElementsAre(ElementsAre(1), ElementsAre(3, 6), ElementsAre(1)));
}

TEST(NumaNodesTest, OnOneNodeThreadsRunAnywhere) {
  EXPECT_THAT(PlacesOfThreads({}, kAll, 4), IsEmpty());
  EXPECT_THAT(PlacesOfThreads({{0, true, {0, 1}}}, kAll, 4), IsEmpty());
  EXPECT_THAT(PlacesOfThreads(kMachine, std::vector<int>{0, 4}, 4), IsEmpty());
}

TEST(NumaNodesTest, NodesHereAreInOrderAndOfProcessorsThatAreOne) {
  const auto nodes = NumaNodesHere();
  if (absl::IsPermissionDenied(nodes.status())) GTEST_SKIP() << nodes.status();
  ASSERT_OK(nodes);
  EXPECT_NE(nodes->size(), 1u);  // Then there is nothing to say.
  std::vector<int> processors;
  for (size_t i = 0; i < nodes->size(); ++i) {
    EXPECT_TRUE(i == 0 || (*nodes)[i].number > (*nodes)[i - 1].number) << i;
    const auto& of_node = (*nodes)[i].processors;
    processors.insert(processors.end(), of_node.begin(), of_node.end());
  }
  std::ranges::sort(processors);
  EXPECT_EQ(std::ranges::adjacent_find(processors), processors.end());
}

TEST(NumaNodesTest, AllowedProcessorsAreThoseOfTheThread) {
  const std::vector<int> all = AllowedProcessors();
  ASSERT_FALSE(all.empty());
  std::thread bound([last = all.back()] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
    EXPECT_THAT(AllowedProcessors(), ElementsAre(last));
  });
  bound.join();
}

}  // namespace
}  // namespace gemini
