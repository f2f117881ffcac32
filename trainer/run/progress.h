// SPDX-License-Identifier: Apache-2.0
// Shows a person how a run goes on: on a terminal by one line that is drawn over, elsewhere by
// plain lines, at most one in a few seconds.
// Owner: one thread.
// Times: of gemini/system/monotonic_clock.h, or of any other that does not go back.
#pragma once
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gemini::trainer {

struct ProgressState {
  int64_t step = 0;  // Completed.
  int64_t num_steps = 0;
  double loss = 0;
  std::string item_name = "tokens";  // Of what the next is.
  double items_per_second = 0;
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

// Something of a run that is no step and may take long.
struct ProgressPart {
  std::string what;  // "evaluating".
  int64_t done = 0;
  int64_t total = 0;
  bool is_bytes = false;  // Of done and total; else they are counts.
};

// Returns the line, at most `columns` wide: "[=====>    ] saving 1.5GiB/4GiB".
std::string PartLine(const ProgressPart& part, int columns);

class Progress {
 public:
  // Draws on `fd` (standard error). It counts as a terminal when isatty says so.
  explicit Progress(int fd);
  // Ends the line that is being drawn.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the state; the first and the last step always, others when it is time.
  void Show(const ProgressState& state, absl::Duration now);
  // Shows how far a part is, when it is time: a part that is soon over is never shown.
  void ShowPart(const ProgressPart& part, absl::Duration now);
  // Takes the drawn line away, so that other text can be printed.
  void Clear();

 private:
  absl::Duration pause() const;  // Between two lines.
  // Draws the line that `make` gives for a width.
  void Draw(absl::FunctionRef<std::string(int columns)> make);
  void Put(absl::string_view text) const;

  const int fd_;
  const bool terminal_;
  bool drawn_ = false;
  absl::Duration last_ = -absl::InfiniteDuration();  // Of a step.
  std::string part_;                                 // That is shown, or will be if it takes long.
  absl::Duration last_part_;                         // When it was shown, or began.
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
