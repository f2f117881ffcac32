// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/timeline_shm.h"

#include <limits>

namespace gemini {
namespace {

constexpr uint64_t kMaxTime = std::numeric_limits<int64_t>::max() / 2;  // Sums of two fit.

}  // namespace

void WriteTimelineEvent(TimelineShm& ring, const TimelineEvent& event) {
  const uint64_t number = ring.written.fetch_add(1, std::memory_order_relaxed) + 1;
  TimelineEntryShm& entry = ring.entries[(number - 1) % kTimelineEntries];
  entry.stamp.store(0, std::memory_order_relaxed);
  // No word of the new event may be seen under the old one's stamp: each is released behind the 0,
  // so whoever acquires one sees that 0 or what followed it. A release fence would do as well, but
  // ThreadSanitizer knows none, and on x86-64 both are plain moves.
  entry.what.store(static_cast<uint64_t>(event.lane) | static_cast<uint64_t>(event.cause) << 8 |
                       static_cast<uint64_t>(event.space) << 16 |
                       static_cast<uint64_t>(event.subject) << 32,
                   std::memory_order_release);
  entry.begin_ns.store(static_cast<uint64_t>(event.begin_ns), std::memory_order_release);
  entry.duration_ns.store(static_cast<uint64_t>(event.end_ns - event.begin_ns),
                          std::memory_order_release);
  entry.stall_ns.store(static_cast<uint64_t>(event.stall_ns), std::memory_order_release);
  entry.size_bytes.store(static_cast<uint64_t>(event.size_bytes), std::memory_order_release);
  entry.stamp.store(number, std::memory_order_release);
}

std::optional<TimelineEvent> ReadTimelineEvent(const TimelineShm& ring, uint64_t number) {
  if (number == 0) return std::nullopt;
  const TimelineEntryShm& entry = ring.entries[(number - 1) % kTimelineEntries];
  if (entry.stamp.load(std::memory_order_acquire) != number) return std::nullopt;
  const uint64_t what = entry.what.load(std::memory_order_acquire);
  const uint64_t begin = entry.begin_ns.load(std::memory_order_acquire);
  const uint64_t duration = entry.duration_ns.load(std::memory_order_acquire);
  const uint64_t stall = entry.stall_ns.load(std::memory_order_acquire);
  const uint64_t size = entry.size_bytes.load(std::memory_order_acquire);
  // Read after every word, since each is acquired.
  if (entry.stamp.load(std::memory_order_relaxed) != number) return std::nullopt;
  const uint64_t lane = what & 0xff;
  const uint64_t cause = what >> 8 & 0xff;
  if (lane >= kNumTimelineLanes || cause >= kNumStallCauses || begin > kMaxTime ||
      duration > kMaxTime || stall > begin || size > kMaxTime) {
    return std::nullopt;
  }
  return TimelineEvent{.lane = static_cast<TimelineLane>(lane),
                       .cause = static_cast<StallCause>(cause),
                       .space = static_cast<uint16_t>(what >> 16),
                       .subject = static_cast<uint32_t>(what >> 32),
                       .begin_ns = static_cast<int64_t>(begin),
                       .end_ns = static_cast<int64_t>(begin + duration),
                       .stall_ns = static_cast<int64_t>(stall),
                       .size_bytes = static_cast<int64_t>(size)};
}

}  // namespace gemini
