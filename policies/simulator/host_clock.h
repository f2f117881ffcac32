// SPDX-License-Identifier: Apache-2.0
// What a playback of DEVICE asks of HOST: when a move or an update may begin there. HOST has rounds
// of its own, which NVME may hold back behind those of DEVICE.
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
  // All outlive this. `keeps_accesses`: for accesses().
  HostClock(const RangeTrace& trace, const Plan& plan, const SimulatedTime& time,
            bool keeps_accesses)
      : trace_(trace), plan_(plan), time_(time), keeps_accesses_(keeps_accesses) {}

  // What HOST is ready for when, from the next round on; outlives this. Null: for all, at once.
  void set_times(const HostTimes* times) { times_ = times; }

  // Forgets the accesses of the round before. The first round of all begins at 0.
  void BeginRound();
  int64_t begin_ns() const { return begin_ns_; }  // Of HOST's round.

  // Records that an event asks for HOST at `asked_ns`, whose chunks take `chunk_ns` each. Returns
  // the moments at which its first chunk and its last one may begin.
  HostReady Ask(HostEvent event, int32_t index, int64_t asked_ns, int64_t chunk_ns);

  // Of the round under way, in the order asked.
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
