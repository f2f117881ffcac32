// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_bell.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

// Longer than a test may take: whoever is not woken in it fails.
constexpr std::chrono::hours kForEver(1);

TEST(RankBellTest, WhatWasRungSinceTheLookEndsASleepAtOnce) {
  RankBell bell;
  uint32_t seen = bell.rings();
  bell.Ring();
  bell.Sleep(seen, std::nullopt);
  seen = bell.rings();
  bell.RingOfOther();
  bell.Sleep(seen, kForEver);
  EXPECT_EQ(bell.rings(), seen + 1);
}

TEST(RankBellTest, APauseEnds) {
  RankBell bell;
  bell.Sleep(bell.rings(), std::chrono::microseconds(1));
  EXPECT_EQ(bell.rings(), 0u);
}

// What two sleepers share, who may be two processes.
struct Shared {
  RankBell bells[2];
  std::atomic<int64_t> next = 0;
};

// Raises the count in each second turn, and sleeps in the other's.
void TakeTurns(Shared& shared, int64_t parity, bool is_one_process) {
  constexpr int64_t kTurns = 20'000;
  RankBell& own = shared.bells[parity];
  RankBell& other = shared.bells[1 - parity];
  const auto ring = [&] { is_one_process ? other.Ring() : other.RingOfOther(); };
  const auto pause = is_one_process ? std::nullopt : std::optional(kForEver);
  for (;;) {
    const uint32_t seen = own.rings();
    const int64_t next = shared.next.load();
    if (next >= kTurns) break;
    if (next % 2 != parity) {
      own.Sleep(seen, pause);
      continue;
    }
    shared.next.store(next + 1);
    ring();
  }
  ring();
}

TEST(RankBellTest, NoRingOfTheOwnProcessIsLost) {
  Shared shared;
  std::thread other([&] { TakeTurns(shared, 1, /*is_one_process=*/true); });
  TakeTurns(shared, 0, /*is_one_process=*/true);
  other.join();
}

TEST(RankBellTest, NoRingBetweenProcessesIsLost) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *new (memory) Shared;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    TakeTurns(shared, 1, /*is_one_process=*/false);
    ::_exit(0);
  }
  TakeTurns(shared, 0, /*is_one_process=*/false);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::munmap(memory, sizeof(Shared));
}

}  // namespace
}  // namespace gemini::trainer
