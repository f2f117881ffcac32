// SPDX-License-Identifier: Apache-2.0
// Lists what a simulated round does in HOST, event by event, and when HOST is ready for it. A
// playback of DEVICE (policies/simulator/playback.h) and one of HOST
// (policies/simulator/host_playback.h) exchange these.
// Units: nanoseconds since the beginning of the round that lists the event. The event may happen in
// the next round.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace gemini::policies {

enum class HostEvent : uint8_t {
  kFetch,      // `index` is in the plan's fetches. Blank fetches do nothing in HOST.
  kGradient,   // In the trace's gradient_outs: it leaves to HOST.
  kWriteBack,  // In the plan's evictions.
  kUpdate,     // A param range that is updated in HOST.
  kGiveUp,     // In the plan's device_updates: HOST and NVME drop the version before.
};
inline constexpr int kNumHostEvents = 5;

// The chunks of a range follow one another evenly.
struct HostAccess {
  HostEvent event = HostEvent::kFetch;
  int32_t index = 0;
  int64_t asked_ns = 0;  // When it would begin if HOST were ready.
  int64_t chunk_ns = 0;  // The time that each chunk takes.
};

// When HOST is ready for the first and for the last chunk of an event. Times count from the
// beginning of the round that is `rounds_after` after the one that lists the event.
struct HostReady {
  static constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 4;
  int64_t rounds_after = 0;
  int64_t first_ns = kLongAgo;
  int64_t last_ns = kLongAgo;
};

// 36 years. HOST may be very many rounds behind, counted by a round that was short, and each of
// them may then last for days.
inline constexpr int64_t kHorizonNs = int64_t{1} << 60;

// Returns the moment `rounds` after `begin_ns`, or kHorizonNs if that is later.
inline int64_t AfterRounds(int64_t begin_ns, int64_t rounds, int64_t round_ns) {
  if (begin_ns >= kHorizonNs || rounds > (kHorizonNs - begin_ns) / std::max<int64_t>(round_ns, 1)) {
    return kHorizonNs;
  }
  return begin_ns + rounds * round_ns;
}

struct HostTimes {
  // By HostEvent, then by the event's index, up to the last known.
  std::array<std::vector<HostReady>, kNumHostEvents> ready;
  int64_t least_round_ns = 0;  // The time that NVME takes for a round.
  HostReady of(HostEvent event, int32_t index) const {
    const std::vector<HostReady>& of_event = ready[static_cast<int>(event)];
    return index < static_cast<int64_t>(of_event.size()) ? of_event[index] : HostReady();
  }
};

}  // namespace gemini::policies
