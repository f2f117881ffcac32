// SPDX-License-Identifier: Apache-2.0
// Reads rows of a run's data as a batch that a model takes.
// Memory: labels that are not the tokens lie outside of Torch's allocator, whose memory a run
//         without a GPU charges to DEVICE: the forecast of a step (trainer/forecast/traced_step.h)
//         knows the tokens alone. On a GPU they take 8 bytes a token more than it says.
// Thread: any.
// Errors: those of the data; Torch's own exceptions pass through.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "torch/types.h"
#include "trainer/data/training_data.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {

// Returns these rows of the data in their order, on `device`, with their documents where rows may
// have several. Nothing is to be predicted of rows behind the first `num_labeled`.
absl::StatusOr<TokenBatch> ReadBatch(const TrainingData& data, absl::Span<const int64_t> rows,
                                     int64_t num_labeled, torch::Device device);

}  // namespace gemini::trainer
