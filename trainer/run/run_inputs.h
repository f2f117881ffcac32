// SPDX-License-Identifier: Apache-2.0
// Opens what a run reads, and refuses what it cannot train with before anything is made.
// Errors: INVALID_ARGUMENT unless it says otherwise; the message names the key and what to do.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/config/run_config.h"
#include "trainer/data/token_fingerprint.h"
#include "trainer/data/training_data.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/trainer_state.h"

namespace gemini::trainer {

// Opens the data that `key` ("--data" or "--eval-data") names, and checks all of it against the
// model. Sets config.sequence if it is 0: to the length of the file's rows, or, for a text, to what
// the model has positions for, at most 1,024. Sets config.has_documents if the file's rows have.
// UNIMPLEMENTED: of ExampleData::CheckRows, or documents on a ring.
absl::StatusOr<TrainingData> OpenData(absl::string_view key, const std::string& path,
                                      const ModelSpec& spec, RunConfig& config);

// Refuses rows that another tokenizer or another chat template made than those that lie beside the
// model. What one of the two does not tell is not compared: a text has no metadata, and a model may
// be without a tokenizer.
absl::Status CheckTokenizer(absl::string_view key, const std::string& path,
                            const TrainingData& data, const HfCheckpoint& source);

// RESOURCE_EXHAUSTED: less is free than all checkpoints will take that lie there at once, less
// those that are there already.
absl::Status CheckRoom(const RunConfig& config, const RunDirectory& directory,
                       int64_t checkpoint_bytes, int64_t steps_done, int64_t num_saved);

// Checks that this run removes nothing that it reads. --overwrite removes what a run made in
// --output, so neither the model nor data may lie there, nor what links in the model's directory
// lead to. Nor may --metrics name data, or a file in the folder of another run.
absl::Status CheckInputsLieElsewhere(const RunConfig& config);

// Returns the file that metrics go to: --metrics, or metrics.jsonl in --output.
std::string MetricsPath(const RunConfig& config);

// What a resumed run starts from.
struct Resumed {
  std::string path;
  TrainerState state;
  int64_t num_saved = 0;  // In the first rank.
};

// Returns the newest checkpoint with --resume, else nothing. Errors: of its files.
absl::StatusOr<std::optional<Resumed>> FindResumed(const RunConfig& config,
                                                   const RunDirectory& directory);
// COLLECTIVE. Returns what the first rank has found.
absl::StatusOr<std::optional<Resumed>> ShareResumed(const RankAgreement& ranks,
                                                    std::optional<Resumed> found);

// Checks that a step of a resumed run takes as many sequences as before, however they are divided
// among micro-batches and ranks. INVALID_ARGUMENT: it does not; the message has both numbers.
// `num_data`: ranks that learn from other sequences than each other, of `num_ranks`.
absl::Status CheckStepIsTheSame(const RunConfig& config, const TrainerState& state,
                                int64_t num_data, int64_t num_ranks);

// Returns what a file is, for people.
std::string Describe(const TokenFingerprint& file);

// Returns what config.json and the weights of a checkpoint are, a line a file: their sizes, and
// checksums of their ends. A model of the same shape in another rank's directory would be trained
// as a part of this.
absl::StatusOr<std::string> DescribeWeights(const std::string& directory);

// Checks that --data is the file that the resumed run began with: other data would be taken in an
// order that is no part of either run. OK if the checkpoint does not say which file that was.
// INVALID_ARGUMENT: it is another; the message describes both.
absl::Status CheckDataIsTheSame(const RunConfig& config, const Resumed& resumed,
                                const TrainingData& data);

}  // namespace gemini::trainer
