// SPDX-License-Identifier: Apache-2.0
// What a thread sleeps by that waits for its own process and for ranks of other processes: each of
// them rings it when there may be something to do. It lies in memory that they share.
// Protocol: an event count. The thread reads the count, looks for what there is to do, and sleeps
//           unless the count has changed since. So no ring between the look and the sleep is lost.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace gemini::trainer {

class RankBell {
 public:
  // Returns how often it was rung, modulo 2^32.
  uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  // Sleeps until it was rung since `seen`, or the pause is over. Without a pause only Ring wakes
  // it. One thread sleeps at a time.
  void Sleep(uint32_t seen, std::optional<std::chrono::nanoseconds> pause);
  // Of the sleeper's process.
  void Ring();
  // Of another rank. It costs a system call only if the thread sleeps for a pause.
  void RingOfOther();

 private:
  enum class Sleeps : uint32_t { kNot, kTillOwnRing, kForPause };

  std::atomic<uint32_t> rings_ = 0;  // A futex.
  std::atomic<Sleeps> sleeps_ = Sleeps::kNot;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace gemini::trainer
