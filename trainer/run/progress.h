// SPDX-License-Identifier: Apache-2.0
// What a person sees while a run goes on: on a terminal one line that is drawn over, elsewhere
// plain lines, at most one a few seconds. Owner:  one thread.
#pragma once
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gemini::trainer {

struct ProgressState {
  int64_t step = 0;  // Completed.
  int64_t num_steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  int64_t device_used_bytes = 0;
  int64_t device_budget_bytes = 0;  // 0: not budgeted; then neither tier is shown.
  int64_t host_bytes = 0;
  absl::Duration left;  // Infinite: not known yet.
};

// Returns the line, at most `columns` wide: "[=====>    ] 120/1000 loss 3.2145 1234 tok/s left
// 1:23:45 DEVICE 60MiB/64MiB HOST 2GiB". What does not fit is left out from the end; the bar
// shrinks first.
std::string ProgressLine(const ProgressState& state, int columns);

// "1:02:03" or "2:03"; "?" when infinite.
std::string DurationText(absl::Duration duration);

class Progress {
 public:
  // Draws on `fd` (standard error). It counts as a terminal when isatty says so.
  explicit Progress(int fd);
  // Ends the line that is being drawn.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the state; the first and the last step always, others when it is time.
  void Show(const ProgressState& state, absl::Time now);
  // Takes the drawn line away, so that other text can be printed.
  void Clear();

 private:
  void Put(absl::string_view text) const;

  const int fd_;
  const bool terminal_;
  bool drawn_ = false;
  absl::Time last_ = absl::InfinitePast();
};

// Seconds a step from the latest steps, for the time left.
class StepClock {
 public:
  // Takes note of a step of `duration`.
  void Add(absl::Duration duration);
  // Returns the time that `steps` more will take; infinite before the first Add.
  absl::Duration Left(int64_t steps) const;

 private:
  // Weight of the newest step: about the last twenty count.
  static constexpr double kNewest = 0.1;
  double mean_seconds_ = 0;
  bool any_ = false;
};

}  // namespace gemini::trainer
