// SPDX-License-Identifier: Apache-2.0
// Makes what one rank of a job has of a model, as the layout of all ranks says.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_lm.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

// INVALID_ARGUMENT: the model, micro-batches of `batch` rows or rows of `sequence` tokens do not
// divide among the ranks; the message names what does not, and numbers that would do.
// UNIMPLEMENTED: the layout is not built for such a model.
absl::Status CheckLayout(const ModelSpec& spec, const RankLayout& layout, int64_t batch,
                         int64_t sequence);

// COLLECTIVE over the job. The model has passed CheckLayout. Of `type` and without values, as
// GatheredLm::Make; the communicator outlives it.
absl::StatusOr<std::unique_ptr<GatheredLm>> MakeModelOfRank(const ModelSpec& spec,
                                                            torch::ScalarType type,
                                                            Communicator& communicator,
                                                            const RankLayout& layout,
                                                            const UnitOptions& options);

}  // namespace gemini::trainer
