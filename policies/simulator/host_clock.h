// SPDX-License-Identifier: Apache-2.0
// Answers, in a simulation of DEVICE, when HOST is ready for a copy or an update. HOST has rounds
// of its own, because NVME may delay them beyond those of DEVICE.
// Units: nanoseconds since the first round's beginning.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/plan/plan.h"
#include "policies/simulator/simulated_time.h"
#include "policies/trace/host_access.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

class HostClock {
 public:
  // All references outlive this. accesses() stays empty without `keeps_accesses`.
  HostClock(const RangeTrace& trace, const Plan& plan, const SimulatedTime& time,
            bool keeps_accesses)
      : trace_(trace), plan_(plan), time_(time), keeps_accesses_(keeps_accesses) {}

  // Sets when HOST is ready for each event, from the next round on. `times` outlives this. With
  // null HOST is always ready.
  void set_times(const HostTimes* times) { times_ = times; }

  // Begins HOST's next round and clears accesses(). The very first round begins at 0.
  void BeginRound();
  // Returns when HOST's current round began.
  int64_t begin_ns() const { return begin_ns_; }

  // Records that an event needs HOST at `asked_ns`, for `chunk_ns` a chunk. Returns when its first
  // chunk and its last one may begin.
  HostReady Ask(HostEvent event, int32_t index, int64_t asked_ns, int64_t chunk_ns);

  // Returns the events of the current round in the order of the calls of Ask.
  const std::vector<HostAccess>& accesses() const { return accesses_; }

 private:
  int64_t NextBeginNs(int64_t round_end_ns) const;
  int64_t RoundEndNs() const;

  const RangeTrace& trace_;
  const Plan& plan_;
  const SimulatedTime& time_;
  const bool keeps_accesses_;
  const HostTimes* times_ = nullptr;
  int64_t begin_ns_ = 0;
  std::vector<HostAccess> accesses_;
};

}  // namespace gemini::policies
