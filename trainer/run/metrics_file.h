// SPDX-License-Identifier: Apache-2.0
// Writes the metrics of a run as lines of JSON, an object for each step and one for each
// evaluation. Each line is one write, so that a killed run leaves whole lines.
// Units:  bytes, seconds and counts are of the step itself, peaks too; budgets are as they stand.
// NaN:    JSON has no NaN and no infinity: such a number is null.
// Owner:  one thread.
// Errors: as write(2).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/session/training_stats.h"
#include "client/update/optimizer_spec.h"
#include "gemini/system/unique_fd.h"
#include "trainer/parallel/communicator.h"
#include "trainer/tasks/task_metrics.h"

namespace gemini::trainer {

struct StepMetrics {
  int64_t step = 0;  // From 1.
  double loss = 0;
  std::optional<double> router_loss;  // Of models whose loss includes it; it is a part of `loss`.
  double lr = 0;
  double loss_scale = 1;  // What the loss was multiplied by.
  client::StepResult update;
  double seconds = 0;
  std::string item_name = "tokens";  // What the next counts, by TrainingData::item_name.
  double items_per_second = 0;
  client::TrainingStats memory;  // What was moved and waited for is this step's alone.
  SentByKind sent = {};          // By this rank in the step; empty where there are no others.
};

struct EvalMetrics {
  int64_t step = 0;
  double eval_loss = 0;
  std::vector<TaskMetric> of_task = {};
  std::optional<double> eval_router_loss = {};
  std::optional<int64_t> expert_fetch_bytes = {};  // To DEVICE, where experts were routed.
};

// Returns the line without its end.
std::string ToJson(const StepMetrics& metrics);
std::string ToJson(const EvalMetrics& metrics);

class MetricsFile {
 public:
  enum class Mode : uint8_t { kNew, kOverwrite, kResume };

  // Looks whether Open can succeed, and makes nothing. Errors: as Open, and INVALID_ARGUMENT where
  // a regular file would be emptied or rewritten that has a line which no run wrote.
  static absl::Status Check(const std::string& path, Mode mode);

  // What a resumed run goes on behind.
  struct Last {
    int64_t step = 0;
    int64_t evaluated_step = 0;
  };
  // Returns the last step <= `step` of which the file has an evaluation; 0: of none, or the file
  // is one that Open only appends to.
  static int64_t LastEvaluatedStep(const std::string& path, int64_t step);

  // kNew: the file must not exist (ALREADY_EXISTS). kOverwrite: it is emptied. kResume: lines of
  // steps and evaluations past `last`, and what a dead run left of a line, are dropped; a missing
  // file is made. A link is followed. What is no regular file, as a pipe or /dev/null, or is
  // somebody's open file, as /dev/stdout, is appended to in each mode. UNAVAILABLE: a pipe that
  // nobody reads.
  static absl::StatusOr<MetricsFile> Open(const std::string& path, Mode mode, const Last& last);

  // An error where a resumed run could not rewrite the file: then it keeps all its lines, and is
  // appended to.
  const absl::Status& rewritten() const { return rewritten_; }

  // UNAVAILABLE: a pipe is full. The line is lost then, for training does not wait.
  absl::Status Append(const StepMetrics& metrics) { return AppendLine(ToJson(metrics)); }
  absl::Status Append(const EvalMetrics& metrics) { return AppendLine(ToJson(metrics)); }

 private:
  absl::Status AppendLine(std::string line);

  std::string path_;
  UniqueFd fd_;
  absl::Status rewritten_;
  bool line_is_torn_ = false;  // The last write put a part of its line into the file.
};

}  // namespace gemini::trainer
