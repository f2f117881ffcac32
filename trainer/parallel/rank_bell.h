// SPDX-License-Identifier: Apache-2.0
// Lets a thread sleep until its own process or the rank of another process rings, because there may
// be something to do. It lies in memory that they share.
// Protocol: an event count. The thread reads the count, looks for what there is to do, and sleeps
//           unless the count has changed since. So no ring between the look and the sleep is lost.
// Order:    all accesses are sequentially consistent. A ringer raises the count and then reads
//           whether there is a sleeper, who says that it sleeps before the kernel compares the
//           count.
// Memory:   of whoever makes it. Nobody may ring or sleep when it is gone.
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
  // Wakes the sleeper, from its own process.
  void Ring();
  // Wakes the sleeper if it sleeps for a pause, from another rank's process.
  void RingOfOther();

 private:
  enum class Sleeps : uint32_t { kNot, kTillOwnRing, kForPause };

  std::atomic<uint32_t> rings_ = 0;  // A futex.
  std::atomic<Sleeps> sleeps_ = Sleeps::kNot;
};
// Processes share it.
static_assert(sizeof(RankBell) == 8 && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace gemini::trainer
