// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/worker_team.h"

#include <sched.h>

#include <atomic>
#include <barrier>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gemini {
namespace {

constexpr int kThreads[] = {1, 2, 3, 5, 16};

// How often Run gave each item to the work.
std::vector<int> TimesOfItems(WorkerTeam& team, int64_t count, int64_t part_size) {
  std::vector<int> times(static_cast<size_t>(count));
  team.Run(count, part_size, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(begin % part_size, 0);
    EXPECT_LE(end - begin, part_size);
    for (int64_t i = begin; i < end; ++i) ++times[i];
  });
  return times;
}

TEST(WorkerTeamTest, EveryItemIsInOnePartWhateverTheNumberOfThreads) {
  for (const int threads : kThreads) {
    WorkerTeam team(threads);
    EXPECT_EQ(team.num_threads(), threads);
    for (const int64_t count : {0, 1, 7, 64, 65, 1000}) {
      const std::vector<int> once(static_cast<size_t>(count), 1);
      for (const int64_t part_size : {1, 7, 64, 2000}) {
        EXPECT_EQ(TimesOfItems(team, count, part_size), once) << threads << " threads, " << count;
      }
    }
  }
}

TEST(WorkerTeamTest, OneThreadIsTheCallerAndWorksInOrder) {
  WorkerTeam team(1);
  std::vector<int64_t> begins;
  team.Run(10, 3, [&, caller = std::this_thread::get_id()](int64_t begin, int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    begins.push_back(begin);
  });
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 3, 6, 9}));
}

// Each part waits for all others: without the helpers this would never end.
TEST(WorkerTeamTest, AllThreadsWorkAtTheSameTime) {
  WorkerTeam team(4);
  for (int round = 0; round < 100; ++round) {
    std::barrier all(4);
    std::atomic<int> parts = 0;
    team.Run(4, 1, [&](int64_t, int64_t) {
      all.arrive_and_wait();
      ++parts;
    });
    EXPECT_EQ(parts, 4);
  }
}

TEST(WorkerTeamTest, WhatTheWorkWroteIsThereInManyShortRuns) {
  WorkerTeam team(3);
  std::vector<int64_t> values(8);
  for (int64_t round = 1; round <= 20'000; ++round) {
    team.Run(8, 1, [&](int64_t begin, int64_t) { values[begin] += begin + 1; });
    for (int64_t i = 0; i < 8; ++i) ASSERT_EQ(values[i], round * (i + 1));
  }
}

TEST(WorkerTeamTest, CallersMeanwhileAndCallsFromWithinWorkAlone) {
  WorkerTeam team(2);
  std::atomic<int64_t> items = 0;
  const auto run = [&] {
    for (int round = 0; round < 1000; ++round) {
      team.Run(4, 1, [&](int64_t, int64_t) {
        team.Run(3, 1, [&](int64_t begin, int64_t end) { items += end - begin; });
      });
    }
  };
  std::thread first(run), second(run);
  first.join();
  second.join();
  EXPECT_EQ(items, 2 * 1000 * 4 * 3);
}

TEST(WorkerTeamTest, HelpersRunWhereTheyArePlaced) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int last = -1;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed)) last = i;
  }
  // The second one's processor does not exist: it runs anywhere.
  WorkerTeam team(3, {{}, {last}, {100'000}});
  std::barrier all(3);
  std::atomic<int> bound = 0;
  team.Run(3, 1, [&](int64_t, int64_t) {
    all.arrive_and_wait();
    cpu_set_t mine;
    if (::sched_getaffinity(0, sizeof mine, &mine) != 0) return;
    if (CPU_COUNT(&mine) == 1 && CPU_ISSET(last, &mine)) ++bound;
  });
  EXPECT_EQ(bound, CPU_COUNT(&allowed) == 1 ? 3 : 1);
}

}  // namespace
}  // namespace gemini
