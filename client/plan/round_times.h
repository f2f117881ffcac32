// SPDX-License-Identifier: Apache-2.0
// Writes what the operators of a round take, in time and in non-model memory, into a trace: the one
// that is being recorded, or that of the plan that is followed.
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

  // Begins a round, whose times are dropped until SetTrace.
  void BeginRound();
  // Sets the trace that gets the times of the current round, including those that are not measured
  // yet. `average`: how many rounds each time is averaged over, this one included; with 0 and 1 it
  // replaces the trace's time.
  // With `replaces_peaks` a peak replaces the trace's, too; otherwise the larger of both counts.
  void SetTrace(Trace& trace, int64_t average, bool replaces_peaks = false) {
    current_.trace = &trace;
    current_.average = average;
    current_.replaces_peaks = replaces_peaks;
  }
  // Ends the interval of the operator before, and begins that of the round's next one. Call
  // AddOperator afterwards, when the trace has that operator.
  void BeginInterval() { BeginInterval(current_, current_.num_positions); }
  void AddOperator() { ++current_.num_positions; }
  // Returns the position of the round's next operator.
  int32_t position() const { return current_.num_positions; }
  // Ends the round. `trace` gets what is measured later; if null, that is dropped.
  void EndRound(Trace* trace, int64_t average);
  // Drop the times of the current round, or of all rounds, that are not written yet.
  void DropRound() { current_ = {}; }
  void DropAll() { current_ = before_ = {}; }

  // Excludes what operators did since `begin` from the current interval.
  void LeaveOutSince(OperatorPoint begin) { LeaveOut({std::move(begin), Now()}); }
  void LeaveOut(OperatorSpan span) { meter_.LeaveOut(std::move(span)); }
  OperatorPoint Now() { return clock_.Now(); }

  // Writes the times that are measured by now.
  void TakeMeasured();
  // Blocks until all times of the round before are measured, and writes them.
  void TakeRoundBefore();

 private:
  struct Round {
    Trace* trace = nullptr;
    int64_t average = 0;
    bool replaces_peaks = false;
    int64_t first_interval = 0;  // The meter's number of its first interval.
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
