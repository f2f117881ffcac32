// SPDX-License-Identifier: Apache-2.0
// Defines the ring of a client's latest events, for `memstat trace`: operators with the wait before
// them, copies, updates, reads and writes of NVME. There is one for each session, in memory that
// the server makes with its lease.
// Writer: any thread of the client. It claims an entry, clears its `stamp`, writes the other words
// and then the stamp, all of them with release order. The ring is overwritten forever. A writer
// that pauses in between while others write a whole lap may spoil one entry of theirs.
// Reader: does not trust the words. It reads the stamp and the words with acquire order, and the
// stamp again. An entry counts when both stamps are its own. Only a picture depends on it.
// Units: nanoseconds of CLOCK_MONOTONIC.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "gemini/stall_cause.h"

namespace gemini {

enum class TimelineLane : uint8_t {
  kOperator = 0,      // subject: position, 0 begins a round; the wait ended at begin_ns.
  kFetch = 1,         // HOST to DEVICE; subject: chunk.
  kEvict = 2,         // DEVICE to HOST, gradients among them; subject: chunk.
  kUpdate = 3,        // In HOST; subject: bundle.
  kNvmeRead = 4,      // subject: chunk.
  kNvmeWrite = 5,     // subject: chunk.
  kDeviceUpdate = 6,  // subject: bundle.
};
inline constexpr int kNumTimelineLanes = 7;
inline constexpr std::array<TimelineLane, kNumTimelineLanes> kAllTimelineLanes = {
    TimelineLane::kOperator,    TimelineLane::kFetch,    TimelineLane::kEvict,
    TimelineLane::kUpdate,      TimelineLane::kNvmeRead, TimelineLane::kNvmeWrite,
    TimelineLane::kDeviceUpdate};

// Returns "operator", "fetch", "evict", "update", "nvme read", "nvme write" or "device update".
constexpr absl::string_view TimelineLaneName(TimelineLane lane) {
  constexpr std::array<absl::string_view, kNumTimelineLanes> kNames = {
      "operator", "fetch", "evict", "update", "nvme read", "nvme write", "device update"};
  return kNames[static_cast<int>(lane)];
}

// What updates show for a parameter, of any type.
inline constexpr int64_t kTimelineElementBytes = 4;

struct TimelineEvent {
  TimelineLane lane = TimelineLane::kOperator;
  StallCause cause = StallCause::kTransfer;  // What most of stall_ns was for.
  // The space of the chunk or bundle: its index in the session, in the order of opening.
  uint16_t space = 0;
  uint32_t subject = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t stall_ns = 0;  // For operators: all waits, drawn as one before begin_ns.
  // For copies and I/O, their bytes; for updates, kTimelineElementBytes a parameter; for operators,
  // the DEVICE bytes in use before the wait.
  int64_t size_bytes = 0;
  bool operator==(const TimelineEvent&) const = default;
};

// Number of entries, a power of two. A training step of 48 blocks has some 3,000 operators and
// copies.
inline constexpr int64_t kTimelineEntries = 16'384;

struct TimelineEntryShm {
  // Number of the event, from 1; 0 while it is being written and before.
  std::atomic<uint64_t> stamp;
  std::atomic<uint64_t> what;  // lane | cause << 8 | space << 16 | subject << 32.
  std::atomic<uint64_t> begin_ns;
  std::atomic<uint64_t> duration_ns;
  std::atomic<uint64_t> stall_ns;
  std::atomic<uint64_t> size_bytes;
};
static_assert(sizeof(TimelineEntryShm) == 48);

struct TimelineShm {
  std::atomic<uint64_t> written;  // Events ever claimed; event n (from 1) is at (n - 1) % entries.
  std::atomic<uint64_t> reserved[7];
  TimelineEntryShm entries[kTimelineEntries];
};
static_assert(offsetof(TimelineShm, entries) == 64);
static_assert(sizeof(TimelineShm) == 64 + 48 * kTimelineEntries);

// Writes `event` as the next one. Lock-free, from any thread of the one writing process.
void WriteTimelineEvent(TimelineShm& ring, const TimelineEvent& event);

// Reads event `number` (from 1). Returns no value if it is overwritten, not written yet, being
// written or invalid.
std::optional<TimelineEvent> ReadTimelineEvent(const TimelineShm& ring, uint64_t number);

}  // namespace gemini
