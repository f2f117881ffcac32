// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/step_batches.h"

#include <vector>

#include "gemini/system/status_macros.h"

namespace gemini::trainer {

StepBatches::StepBatches(const RunConfig& config, const TrainingData& data, int64_t vocab_size,
                         const DataPart& part, torch::Device device)
    : config_(config),
      data_(data),
      vocab_size_(vocab_size),
      part_(part),
      device_(device),
      order_(config.order == "sequential" ? SequenceOrder::Kind::kSequential
                                          : SequenceOrder::Kind::kShuffled,
             data.num_sequences(), static_cast<uint64_t>(config.seed)) {}

RowMasks StepBatches::MasksFrom(int64_t row) const {
  return {.seed = static_cast<uint64_t>(config_.seed), .vocab_size = vocab_size_, .first_row = row};
}

absl::StatusOr<Batch> StepBatches::Read(const StepNumbers& step, int64_t micro_batch) const {
  const int64_t first = step.sequences_taken + PlaceOf(micro_batch) * config_.batch;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < config_.batch; ++i) rows.push_back(order_.At(first + i));
  return ReadBatch(data_, rows, config_.batch, MasksFrom(first), device_);
}

int64_t StepBatches::num_counted() const {
  if (!counts_own()) return num_sequences();
  return part_.speaks ? config_.batch * config_.accumulate : 0;
}

absl::StatusOr<int64_t> StepBatches::CountLabels(const StepNumbers& step) const {
  int64_t row = step.sequences_taken + (counts_own() ? PlaceOf(0) * config_.batch : 0);
  int64_t num_labels = 0;
  for (const int64_t end = row + num_counted(); row < end; ++row) {
    GEMINI_ASSIGN_OR_RETURN(const int64_t of_row,
                            trainer::CountLabels(data_, order_.At(row), MasksFrom(row)));
    num_labels += of_row;
  }
  return num_labels;
}

}  // namespace gemini::trainer
