// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace gemini::trainer {
namespace {

// Not FUTEX_PRIVATE: other processes wake it.
void Wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

void RankBell::Sleep(uint32_t seen, std::optional<std::chrono::nanoseconds> pause) {
  timespec until = {};
  if (pause.has_value()) {
    until.tv_sec = static_cast<time_t>(pause->count() / 1'000'000'000);
    until.tv_nsec = static_cast<long>(pause->count() % 1'000'000'000);
  }
  sleeps_.store(pause.has_value() ? Sleeps::kForPause : Sleeps::kTillOwnRing,
                std::memory_order_seq_cst);
  // The kernel compares the count once more: who raised it before that may have seen no sleeper.
  ::syscall(SYS_futex, &rings_, FUTEX_WAIT, seen, pause.has_value() ? &until : nullptr, nullptr, 0);
  sleeps_.store(Sleeps::kNot, std::memory_order_seq_cst);
}

void RankBell::Ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeps_.load(std::memory_order_seq_cst) != Sleeps::kNot) Wake(rings_);
}

void RankBell::RingOfOther() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeps_.load(std::memory_order_seq_cst) == Sleeps::kForPause) Wake(rings_);
}

}  // namespace gemini::trainer
