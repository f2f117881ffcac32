// SPDX-License-Identifier: Apache-2.0
// What a played round does in HOST, event by event, and the times at which HOST lets it: what a
// playback of DEVICE (policies/simulator/playback.h) and one of HOST
// (policies/simulator/host_playback.h) tell each other.
// Units: nanoseconds since the beginning of the round that lists the event; it may come in the next
//        one.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace gemini::policies {

enum class HostEvent : uint8_t {
  kFetch,      // `index`: of the plan's fetches. Blank ones do nothing in HOST.
  kGradient,   // Of the trace's gradient_outs: it leaves to HOST.
  kWriteBack,  // Of the plan's evictions.
  kUpdate,     // Of a param range that is updated in HOST.
  kGiveUp,     // Of the plan's device_updates: HOST and NVME have the version before, and drop it.
};
inline constexpr int kNumHostEvents = 5;

// The chunks of a range follow one another evenly.
struct HostAccess {
  HostEvent event = HostEvent::kFetch;
  int32_t index = 0;
  int64_t asked_ns = 0;  // When it would begin if HOST were ready.
  int64_t chunk_ns = 0;  // What each chunk takes.
};

// When HOST is ready for an event: its first chunk may begin, and its last one. Since the beginning
// of the round that comes so many after the one that lists it.
struct HostReady {
  static constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 4;
  int64_t rounds_after = 0;
  int64_t first_ns = kLongAgo;
  int64_t last_ns = kLongAgo;
};

struct HostTimes {
  // By HostEvent, and by its index up to the last known.
  std::array<std::vector<HostReady>, kNumHostEvents> ready;
  int64_t least_round_ns = 0;  // What NVME takes for a round.
  HostReady of(HostEvent event, int32_t index) const {
    const std::vector<HostReady>& of_event = ready[static_cast<int>(event)];
    return index < static_cast<int64_t>(of_event.size()) ? of_event[index] : HostReady();
  }
};

}  // namespace gemini::policies
