// SPDX-License-Identifier: Apache-2.0
// Writes and reads what a checkpoint holds besides parameters, so that a run goes on as if it had
// not stopped:
//     trainer_state.json     step, sequences taken, the steps of each parameter, the scale of the
//                            loss, and which data the run began with
//     optimizer.safetensors  "exp_avg.NAME" and "exp_avg_sq.NAME", fp32, for each parameter
// This is the JSON; the moments stream through trainer/run/run_checkpoint.h.
// Errors: INVALID_ARGUMENT: not such a file (names what is wrong). NOT_FOUND and others: as
// open(2).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/data/token_fingerprint.h"
#include "trainer/run/loss_scale.h"

namespace gemini::trainer {

struct TrainerState {
  int64_t step = 0;             // Completed.
  int64_t sequences_taken = 0;  // The data's cursor (trainer/data/sequence_order.h).
  std::map<std::string, int64_t> tensor_steps;  // Steps in which each parameter had a gradient.
  double first_loss = 0;                        // Of the run's first step, for the summary.
  double last_loss = 0;                         // Of its last one.
  int64_t evaluated_step = 0;                   // Of the last evaluation that was completed.
  LossScale loss_scale = {};                    // Of fp16.
  std::optional<TokenFingerprint> data;         // Of --data; absent in older files.
  bool operator==(const TrainerState&) const = default;
};

std::string ToJson(const TrainerState& state);
absl::StatusOr<TrainerState> ParseTrainerState(absl::string_view json, absl::string_view where);

inline constexpr char kTrainerStateFile[] = "trainer_state.json";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";

}  // namespace gemini::trainer
