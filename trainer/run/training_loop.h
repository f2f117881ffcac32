// SPDX-License-Identifier: Apache-2.0
// Runs the steps of a run: it reads data, runs forward, backward and update, evaluates, and writes
// metrics and checkpoints. It is the same for every ParameterStore.
// Owner:  one thread, which may block for everything.
// Ranks:  all ranks of a run have a loop each, and go through the same steps. The first one
//         logs, writes and saves. A step that fails in one rank fails in all of them; but an
//         exception of Torch ends its rank alone, and the job with it.
// Errors: a step that fails has changed no parameter. FAILED_PRECONDITION: a loss or gradient that
//         is not finite, with the step and the tensor. RESOURCE_EXHAUSTED: the DEVICE budget or the
//         disk. UNAVAILABLE: the server of the store's memory is gone; what the last complete step
//         left was saved if it could be read. Others: of the data, the store, the files.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/config/run_config.h"
#include "trainer/data/training_data.h"
#include "trainer/models/activation_store.h"
#include "trainer/models/expert_cache.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/pipeline_stage.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_needs.h"
#include "trainer/run/interrupt.h"
#include "trainer/run/metrics_file.h"
#include "trainer/run/progress.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/step_batches.h"
#include "trainer/run/trainer_state.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

// What a loop works on; all of it outlives the loop.
struct TrainingParts {
  const RunConfig& config;
  torch::Device device;  // Of the model's parameters.
  StagedModel& model;
  PipelineStage* stage = nullptr;  // By which the model runs in a pipeline; null without one.
  ParameterStore& store;
  ActivationStore& activations;  // Between blocks; used by the vertical schedule.
  // Fetches an expert that an evaluation routes. If it is null, experts are read where they lie.
  FetchWeights fetch_expert = nullptr;
  const std::vector<ParameterShape>& parameters;
  const TrainingData& data;
  const TrainingData* eval_data;  // Null: none.
  const HfCheckpoint& source;     // Of config.json and the tokenizer.
  RunDirectory* directory;  // Of the first rank; null in the others, which do not begin it either.
  // Makes the output directory ready and opens the metrics: called once, when the first step has
  // succeeded. So a run that cannot do a step leaves no trace, and does not overwrite a former one.
  std::function<absl::StatusOr<MetricsFile>()> begin;
  Progress& progress;
  const Interrupt& interrupt;
  const RankAgreement& ranks;
  // Whether ranks find out by themselves how much memory operators need, before the first step.
  bool rehearses = false;
  DataPart part = {};
  std::function<void(const std::string&)> log;   // One line for people.
  std::function<void(const std::string&)> warn;  // Likewise, of what went wrong.
};

struct TrainingSummary {
  int64_t first_step = 0;  // The last step that was completed before this process.
  int64_t step = 0;        // The last step that is completed now.
  double first_loss = 0;   // Of step 1.
  double last_loss = 0;
  std::optional<double> eval_loss;
  std::vector<TaskMetric> eval_metrics;
  // Since the start; the peaks are the largest of all steps.
  client::TrainingStats memory;
  std::optional<RankNeeds> neediest;  // The most that any rank needed; absent with one rank.
  int signal = 0;  // The signal that ended the run before its last step, in whichever rank.
  absl::Duration duration;
  std::string item_name = "tokens";  // What `items` counts, by TrainingData::item_name.
  int64_t items = 0;                 // In all ranks.
  std::string checkpoint;            // Where the model lies.
};

// Runs to the last step or the first signal, and saves unless nothing was done. `resumed`: the
// state and the path of the checkpoint that the store was loaded from; null in a new run.
absl::StatusOr<TrainingSummary> Train(const TrainingParts& parts, const TrainerState* resumed,
                                      const std::string& resumed_path);

}  // namespace gemini::trainer
