// SPDX-License-Identifier: Apache-2.0
// The metrics of a run: JSON lines, one object a step and one an evaluation. Each line is one
// write, so that a killed run leaves whole lines.
// Units:  bytes, seconds and counts are of the step itself, peaks too; budgets are as they stand.
// NaN:    JSON has no NaN and no infinity: such a number is null.
// Owner:  one thread.
// Errors: as write(2).
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/stall_cause.h"
#include "gemini/system/unique_fd.h"

namespace gemini::trainer {

struct StepMetrics {
  int64_t step = 0;  // From 1.
  double loss = 0;
  double lr = 0;
  double grad_norm = 0;         // Before clipping.
  double clip_coefficient = 1;  // What the gradients were multiplied by.
  double loss_scale = 1;        // What the loss was.
  bool skipped = false;         // A gradient overflowed: nothing was updated.
  double seconds = 0;
  double tokens_per_second = 0;
  int64_t device_budget_bytes = 0;
  int64_t device_peak_bytes = 0;     // Chunks and all that operators allocated, together.
  int64_t non_model_peak_bytes = 0;  // What operators allocated, at its own peak.
  int64_t pinned_peak_bytes = 0;     // The most that operators pinned at one time, of all steps.
  int64_t host_bytes = 0;
  int64_t registered_host_bytes = 0;  // With a GPU's driver; the space's slots, used or not.
  int64_t nvme_bytes = 0;
  int64_t fetch_bytes = 0;
  int64_t evict_bytes = 0;
  double stall_seconds = 0;
  std::array<double, kNumStallCauses> stall_seconds_by_cause = {};  // By StallCause.
  int64_t planned_rounds = 0;                             // 1: the step followed its plan.
  std::array<int64_t, kNumDivergences> divergences = {};  // By Divergence.
};

struct EvalMetrics {
  int64_t step = 0;
  double eval_loss = 0;
  double eval_perplexity = 0;
};

// Returns the line without its end.
std::string ToJson(const StepMetrics& metrics);
std::string ToJson(const EvalMetrics& metrics);

class MetricsFile {
 public:
  enum class Mode : uint8_t { kNew, kOverwrite, kResume };

  // Looks whether Open can succeed, and makes nothing. Errors: as Open.
  static absl::Status Check(const std::string& path, Mode mode);

  // What a resumed run goes on behind.
  struct Last {
    int64_t step = 0;
    int64_t evaluated_step = 0;
  };
  // Returns the last step <= `step` of which the file has an evaluation; 0: of none, or it is no
  // regular file.
  static int64_t LastEvaluatedStep(const std::string& path, int64_t step);

  // kNew: the file must not exist (ALREADY_EXISTS). kOverwrite: it is emptied. kResume: lines of
  // steps and evaluations past `last`, and what a dead run left of a line, are dropped; a missing
  // file is made. A link is followed. What is no regular file, as a pipe or /dev/null, is appended
  // to in each mode; UNAVAILABLE: a pipe that nobody reads.
  static absl::StatusOr<MetricsFile> Open(const std::string& path, Mode mode, const Last& last);

  absl::Status Append(const StepMetrics& metrics) { return AppendLine(ToJson(metrics)); }
  absl::Status Append(const EvalMetrics& metrics) { return AppendLine(ToJson(metrics)); }

 private:
  absl::Status AppendLine(std::string line);

  std::string path_;
  UniqueFd fd_;
};

}  // namespace gemini::trainer
