// SPDX-License-Identifier: Apache-2.0
// Puts what the operators of rounds take, in time and in non-model memory, into traces: into the
// one that is recorded, or into that of the plan that is followed.
// Times: by the clock of what operators run on (ADR 0027). On a GPU they are known later, those of
// a round's end during the next round. So the round before is kept until its times are known.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <utility>

#include "client/copy/measured_spans.h"
#include "client/device/device_budget.h"
#include "client/device/residency.h"
#include "client/plan/interval_meter.h"
#include "gemini/plan/trace.h"
#include "gemini/shm/timeline_shm.h"

namespace gemini::client {

class RoundTimes {
 public:
  // All arguments outlive this. `timeline` may be null.
  RoundTimes(Residency& residency, DeviceBudget& budget, TimelineShm* timeline)
      : clock_(residency.copies()),
        budget_(budget),
        meter_(clock_, residency.stalls(), budget, timeline) {}

  // Begins a round, whose times are nobody's until SetTrace.
  void BeginRound();
  // Says which trace gets the times of the current round, those too that are not measured yet.
  // `average`: the time of an operator joins that of so many rounds; 0 and 1: it replaces it.
  void SetTrace(Trace& trace, int64_t average) {
    current_.trace = &trace;
    current_.average = average;
  }
  // Ends the interval of the operator before, and begins that of the round's next one. Call
  // AddOperator behind it, when the trace has that operator.
  void BeginInterval() { BeginInterval(current_, current_.num_positions); }
  void AddOperator() { ++current_.num_positions; }
  // Returns the position of the round's next operator.
  int32_t position() const { return current_.num_positions; }
  // Ends the round. `trace` gets what is measured later; null: nobody does.
  void EndRound(Trace* trace, int64_t average);
  // What was measured of the current round, or of all, is nobody's.
  void DropRound() { current_ = {}; }
  void DropAll() { current_ = before_ = {}; }

  // Excludes what operators did since `begin` from the current interval.
  void LeaveOutSince(OperatorPoint begin) { LeaveOut({std::move(begin), Now()}); }
  void LeaveOut(OperatorSpan span) { meter_.LeaveOut(std::move(span)); }
  OperatorPoint Now() { return clock_.Now(); }

  // Takes up what is measured by now.
  void TakeMeasured();
  // Blocks until all times of the round before are measured, and takes them up.
  void TakeRoundBefore();

 private:
  struct Round {
    Trace* trace = nullptr;
    int64_t average = 0;
    int64_t first_interval = 0;  // The meter's number of its first.
    int32_t num_positions = 0;
  };
  // Ends the current interval, the last of `round` by now, and begins that of `position`.
  void BeginInterval(const Round& round, int32_t position);

  CopyEngine& clock_;
  DeviceBudget& budget_;
  IntervalMeter meter_;
  Round current_;
  Round before_;
};

}  // namespace gemini::client
