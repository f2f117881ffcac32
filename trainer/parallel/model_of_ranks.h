// SPDX-License-Identifier: Apache-2.0
// Makes what one rank of a job has of a model, as the layout of all ranks says.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/model_stages.h"
#include "trainer/parallel/rank_layout.h"
#include "trainer/parallel/tensor_layers.h"

namespace gemini::trainer {

// INVALID_ARGUMENT: the model, micro-batches of `batch` rows or rows of `sequence` tokens do not
// divide among the ranks; the message names what does not, and numbers that would do.
// UNIMPLEMENTED: the layout is not built for such a model.
absl::Status CheckLayout(const ModelSpec& spec, const RankLayout& layout, int64_t batch,
                         int64_t sequence);

// COLLECTIVE over the job. Returns the layers that this rank makes its model of, on the meta
// device, where ranks share layers or sequences: layout.ranks_of_row() > 1. The model has passed
// CheckLayout. The communicator outlives the layers and the model.
absl::StatusOr<std::unique_ptr<TensorLayers>> MakeLayersOfRank(const ModelSpec& spec,
                                                               torch::ScalarType type,
                                                               Communicator& communicator,
                                                               const RankLayout& layout);

// COLLECTIVE over the job. The model has passed CheckLayout. Of `type` and without values, as
// GatheredModel::Make; the communicator outlives it. `stages` are those of the layout's pipelines,
// and are only needed where it has some.
absl::StatusOr<std::unique_ptr<GatheredModel>> MakeModelOfRank(
    const ModelSpec& spec, torch::ScalarType type, Communicator& communicator,
    const RankLayout& layout, const UnitOptions& options,
    const std::optional<ModelStages>& stages = {});

}  // namespace gemini::trainer
