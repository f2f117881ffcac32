// SPDX-License-Identifier: Apache-2.0
// Records what a simulated round did: sums, and each event if that is asked for.
// Units: nanoseconds since the first round's beginning.
#pragma once
#include <cstdint>
#include <vector>

#include "policies/simulator/simulated_time.h"
#include "policies/simulator/simulator.h"

namespace gemini::policies {

class PlaybackRecord {
 public:
  PlaybackRecord(int64_t num_positions, bool with_events)
      : with_events_(with_events), device_bytes_(num_positions, 0) {}

  void BeginRound() { totals = {}; }
  void Add(const SimulatedEvent& event) {
    if (with_events_) events_.push_back(event);
  }
  // Sets how many bytes of chunks and non-model data are on DEVICE in the interval of `position`.
  void SetDeviceBytes(int32_t position, int64_t size_bytes);

  // Returns the last round. Its events are those that begin in it, even if the round before
  // recorded them. To be called once, because it moves the bytes by position out.
  Simulation Take(const SimulatedTime& time);

  Prediction totals;  // Of the current round.

 private:
  const bool with_events_;
  std::vector<int64_t> device_bytes_;  // By position.
  std::vector<SimulatedEvent> events_;
};

}  // namespace gemini::policies
