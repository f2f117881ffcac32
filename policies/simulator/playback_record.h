// SPDX-License-Identifier: Apache-2.0
// What a simulated round did: sums, and each event if asked for.
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

  bool with_events() const { return with_events_; }
  void BeginRound() { totals = {}; }
  void Add(const SimulatedEvent& event) {
    if (with_events_) events_.push_back(event);
  }
  // How many bytes of chunks and non-model data lie on DEVICE in the interval of `position`.
  void SetDeviceBytes(int32_t position, int64_t size_bytes);

  // The last round, and what the round before had begun and it sees begin. Once.
  Simulation Take(const SimulatedTime& time);

  Prediction totals;  // Of the round under way.

 private:
  const bool with_events_;
  std::vector<int64_t> device_bytes_;  // By position.
  std::vector<SimulatedEvent> events_;
};

}  // namespace gemini::policies
