// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/timeline_shm.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gemini {
namespace {

constexpr size_t kPageSize = 4096;

std::unique_ptr<TimelineShm> MakeRing() { return std::make_unique<TimelineShm>(); }

// An event all of whose fields follow from `seed`, so that a torn one shows.
TimelineEvent EventOf(uint32_t seed) {
  return {.lane = static_cast<TimelineLane>(seed % kNumTimelineLanes),
          .cause = static_cast<StallCause>(seed % kNumStallCauses),
          .space = static_cast<uint16_t>(seed * 7),
          .subject = seed,
          .begin_ns = int64_t{1'000'000} + seed,
          .end_ns = int64_t{1'000'000} + int64_t{3} * seed,
          .stall_ns = seed % 1'000,
          .size_bytes = int64_t{seed} * 4096};
}

TEST(TimelineShmTest, AnEventIsReadAsItWasWritten) {
  const auto ring = MakeRing();
  for (uint32_t i = 1; i <= 20; ++i) WriteTimelineEvent(*ring, EventOf(i));
  EXPECT_EQ(ring->written.load(), 20);
  for (uint32_t i = 1; i <= 20; ++i) EXPECT_EQ(ReadTimelineEvent(*ring, i), EventOf(i));
  EXPECT_EQ(ReadTimelineEvent(*ring, 0), std::nullopt);
  EXPECT_EQ(ReadTimelineEvent(*ring, 21), std::nullopt);
}

TEST(TimelineShmTest, TheOldestEventsAreOverwritten) {
  const auto ring = MakeRing();
  const auto total = static_cast<uint32_t>(kTimelineEntries + 5);
  for (uint32_t i = 1; i <= total; ++i) WriteTimelineEvent(*ring, EventOf(i));
  EXPECT_EQ(ReadTimelineEvent(*ring, 5), std::nullopt);
  EXPECT_EQ(ReadTimelineEvent(*ring, 6), EventOf(6));
  EXPECT_EQ(ReadTimelineEvent(*ring, total), EventOf(total));
}

TEST(TimelineShmTest, ReadersOfABusyRingSeeNoTornEvent) {
  const auto ring = MakeRing();
  constexpr uint32_t kEach = 2'000'000;
  std::vector<std::thread> writers;
  for (uint32_t writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&ring, writer] {
      for (uint32_t i = 0; i < kEach; ++i) WriteTimelineEvent(*ring, EventOf(2 * i + writer));
    });
  }
  int64_t seen = 0;
  std::mt19937_64 random(/*seed=*/11);
  while (ring->written.load() < 2 * kEach) {
    const uint64_t written = ring->written.load();
    if (written == 0) continue;
    // Among the newest, or among those that are being overwritten.
    const uint64_t back = random() % std::min<uint64_t>(written, 64);
    const uint64_t oldest = written < kTimelineEntries ? 1 : written - kTimelineEntries + 1;
    const uint64_t number = random() % 2 == 0 ? written - back : oldest + back % 4;
    const auto event = ReadTimelineEvent(*ring, number);
    if (!event) continue;
    ++seen;
    ASSERT_EQ(*event, EventOf(event->subject));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(seen, 0);
}

// Where the kernel stopped a writer in the middle of an entry.
struct Stopped {
  TimelineShm* ring = nullptr;
  int64_t entry = 0;
  void* page = nullptr;
  uint64_t stamp = ~uint64_t{0};
  bool readable = true;
};
Stopped stopped;

void LookAndLetGo(int, siginfo_t*, void*) {
  const TimelineEntryShm& entry = stopped.ring->entries[stopped.entry];
  stopped.stamp = entry.stamp.load(std::memory_order_relaxed);
  stopped.readable = ReadTimelineEvent(*stopped.ring, stopped.entry + 1).has_value();
  ::mprotect(stopped.page, kPageSize, PROT_READ | PROT_WRITE);
}

// An entry whose stamp lies at the end of a page and its times on the next one, which cannot be
// written: there the writer stops, and what a reader finds is looked at.
TEST(TimelineShmTest, AnEntryThatIsHalfWrittenIsNone) {
  int64_t straddling = 0;
  while ((offsetof(TimelineShm, entries) + sizeof(TimelineEntryShm) * straddling +
          offsetof(TimelineEntryShm, begin_ns)) %
             kPageSize !=
         0) {
    ASSERT_LT(++straddling, kTimelineEntries);
  }
  const size_t size = (sizeof(TimelineShm) / kPageSize + 1) * kPageSize;
  void* const memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  stopped.ring = new (memory) TimelineShm;
  stopped.entry = straddling;
  stopped.page = &stopped.ring->entries[straddling].begin_ns;
  for (int64_t i = 0; i < kTimelineEntries + straddling; ++i) {
    WriteTimelineEvent(*stopped.ring, EventOf(static_cast<uint32_t>(i + 1)));
  }
  ASSERT_TRUE(ReadTimelineEvent(*stopped.ring, straddling + 1));
  struct sigaction look = {}, before = {};
  look.sa_sigaction = LookAndLetGo;
  look.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGSEGV, &look, &before), 0);
  ASSERT_EQ(::mprotect(stopped.page, kPageSize, PROT_READ), 0);
  WriteTimelineEvent(*stopped.ring, EventOf(7));
  ::sigaction(SIGSEGV, &before, nullptr);
  EXPECT_EQ(stopped.stamp, 0);
  EXPECT_FALSE(stopped.readable);
  EXPECT_EQ(ReadTimelineEvent(*stopped.ring, kTimelineEntries + straddling + 1), EventOf(7));
  ::munmap(memory, size);
}

TEST(TimelineShmTest, NoiseIsRefusedOrHarmless) {
  const auto ring = MakeRing();
  std::mt19937_64 random(/*seed=*/3);
  for (int round = 0; round < 10'000; ++round) {
    TimelineEntryShm& entry = ring->entries[0];
    entry.stamp.store(1);
    entry.what.store(random());
    entry.begin_ns.store(random() >> random() % 64);
    entry.duration_ns.store(random() >> random() % 64);
    entry.stall_ns.store(random() >> random() % 64);
    entry.size_bytes.store(random() >> random() % 64);
    const auto event = ReadTimelineEvent(*ring, 1);
    if (!event) continue;
    EXPECT_LE(event->stall_ns, event->begin_ns);
    EXPECT_LE(event->begin_ns, event->end_ns);
    EXPECT_GE(event->size_bytes, 0);
  }
}

}  // namespace
}  // namespace gemini
