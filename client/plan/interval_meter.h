// SPDX-License-Identifier: Apache-2.0
// Measures the intervals of operators (gemini/plan/trace.h) by the clock of what they run on, and
// shows them in the timeline. An interval lasts from the begin of one operator to that of the next.
// On a GPU it is measured some time after its end, when the GPU has finished it.
// Thread: none of its own; the caller locks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/copy/measured_spans.h"
#include "client/device/device_budget.h"
#include "client/device/stall_times.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

class IntervalMeter {
 public:
  struct Interval {
    int64_t number = 0;
    int64_t compute_ns = 0;  // Without the stalls of its operators and what was left out.
  };

  // All arguments outlive this. `timeline` may be null.
  IntervalMeter(CopyEngine& clock, StallTimes& stalls, const DeviceBudget& budget,
                TimelineShm* timeline)
      : clock_(clock), stalls_(stalls), budget_(budget), timeline_(timeline) {}

  // Ends the current interval and begins the next, of the operator at `position`, which the
  // timeline shows. -1: it is not shown.
  void Begin(int32_t position);
  // Excludes what the calling thread's operators did in the span from the current interval.
  void LeaveOut(OperatorSpan span) { current_.left_out.push_back(std::move(span)); }
  // Returns the number of the current interval; intervals are numbered in sequence.
  int64_t number() const { return current_.number; }

  // Returns the next interval that has ended and is measured. Each is returned once, in order.
  std::optional<Interval> Take();
  // Blocks until the ended intervals up to `number` are measured.
  void Await(int64_t number) const {
    if (!ended_.empty() && ended_.front().number <= number) {
      ended_.Await(clock_, static_cast<size_t>(number - ended_.front().number + 1));
    }
  }

 private:
  struct Shown {
    int64_t number = 0;
    int32_t position = -1;
    int64_t device_bytes = 0;  // In use at its beginning.
    uint64_t num_stalls = 0;   // StallTimes::num_added at its end.
    std::vector<OperatorSpan> left_out = {};
  };
  void Show(const Shown& interval, int64_t begin_ns, int64_t end_ns, int64_t stall_ns);

  CopyEngine& clock_;
  StallTimes& stalls_;
  const DeviceBudget& budget_;
  TimelineShm* const timeline_;
  Shown current_;
  MeasuredSpans<Shown> ended_;  // Each begins where the one before ends.
  int64_t last_end_ns_ = 0;     // End of the interval that was taken last.
  // StallTimes when the last interval was taken.
  int64_t taken_stall_ns_ = 0;
  std::array<int64_t, kNumStallCauses> taken_stalls_ns_ = {};
};

}  // namespace gemini::client
