// SPDX-License-Identifier: Apache-2.0
// Determines which rows of the data each micro-batch of a step has, and what is drawn at random for
// it. Both follow from the numbers of the step alone, so a step that is begun again, or run by
// other ranks, has the same.
// Thread: any.
// Errors: those of the data; Torch's own exceptions pass through.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "torch/types.h"
#include "trainer/config/run_config.h"
#include "trainer/data/sequence_order.h"
#include "trainer/data/training_data.h"
#include "trainer/models/batch.h"
#include "trainer/models/dropout_mask.h"
#include "trainer/run/read_batch.h"

namespace gemini::trainer {

// Which part of a step's sequences a rank learns from, of `count`. Ranks that share layers or
// blocks learn from the same part, and one of them speaks for all. They may divide the sequences of
// a micro-batch, into `batch_parts`.
struct DataPart {
  int64_t index = 0;
  int64_t count = 1;
  int64_t batch_parts = 1;
  bool speaks = true;
};

// Which step it is: how many were done before it, and how many sequences these had.
struct StepNumbers {
  int64_t step = 0;
  int64_t sequences_taken = 0;
};

class StepBatches {
 public:
  // The configuration and the data outlive this. Batches come to `device`.
  StepBatches(const RunConfig& config, const TrainingData& data, int64_t vocab_size,
              const DataPart& part, torch::Device device);

  // Returns the batch of one of this rank's micro-batches.
  absl::StatusOr<Batch> Read(const StepNumbers& step, int64_t micro_batch) const;
  // Returns what a model draws in it.
  DropoutDraw DrawOf(const StepNumbers& step, int64_t micro_batch) const {
    return {static_cast<uint64_t>(config_.seed), step.step, PlaceOf(micro_batch)};
  }
  // Returns what is hidden of rows of a masked task, from this one of the run on.
  RowMasks MasksFrom(int64_t row) const;

  // Micro-batches and sequences of a step of all ranks.
  int64_t num_micro_batches() const { return config_.accumulate * part_.count; }
  int64_t num_sequences() const { return config_.batch * num_micro_batches(); }
  // Returns how many labels the step has: those in the rows of all ranks, or, where that takes
  // reading them, in this rank's own, if it speaks for them (counts_own).
  absl::StatusOr<int64_t> CountLabels(const StepNumbers& step) const;
  bool counts_own() const { return data_.task().kind == TaskKind::kMasked; }
  // How many rows it counts the labels of.
  int64_t num_counted() const;

 private:
  // Returns the place of this rank's micro-batch among those of all ranks.
  int64_t PlaceOf(int64_t micro_batch) const {
    return part_.index * config_.accumulate + micro_batch;
  }

  const RunConfig& config_;
  const TrainingData& data_;
  const int64_t vocab_size_;
  const DataPart part_;
  const torch::Device device_;
  const SequenceOrder order_;
};

}  // namespace gemini::trainer
