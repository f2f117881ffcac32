// SPDX-License-Identifier: Apache-2.0
// Reads rows of a run's data as a batch that a model takes, and counts what it is to predict.
// Memory: labels that are neither the tokens nor bins lie outside of Torch's allocator, whose
//         memory a run without a GPU charges to DEVICE: the forecast of a step
//         (trainer/forecast/traced_step.h) knows what the model reads alone. On a GPU they take 8
//         bytes a token more than it says. Types lie there, too; the forecast has them. The bins of
//         a distogram lie in Torch's allocator, and the forecast has them.
// Thread: any.
// Errors: those of the data; Torch's own exceptions pass through.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "torch/types.h"
#include "trainer/data/training_data.h"
#include "trainer/models/batch.h"

namespace gemini::trainer {

// What a masked task hides of the rows that are read (trainer/tasks/masking.h).
struct RowMasks {
  uint64_t seed = 0;
  int64_t vocab_size = 0;
  int64_t first_row = 0;  // The place of the first of the rows; the others follow it.
  bool is_evaluation = false;
};

// Returns these rows of the data in their order, on `device`, with their documents where a model
// has to know them. Nothing is to be predicted of rows behind the first `num_labeled`.
absl::StatusOr<Batch> ReadBatch(const TrainingData& data, absl::Span<const int64_t> rows,
                                int64_t num_labeled, const RowMasks& masks, torch::Device device);

// Returns how many labels a row has that a batch would predict: one at least. Only the rows of a
// masked task are read. `masks`: of this row. The data's rows were checked.
absl::StatusOr<int64_t> CountLabels(const TrainingData& data, int64_t row, const RowMasks& masks);

}  // namespace gemini::trainer
