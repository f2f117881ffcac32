// SPDX-License-Identifier: Apache-2.0
// Makes what one rank has of a run: its part of the model, as the keys of gemini-train say, and
// what runs that part in a pipeline. Runs and forecasts of them make it here, so they have the
// same.
// Thread: the one that issues the rank's collectives.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "trainer/config/run_config.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/model_stages.h"
#include "trainer/parallel/pipeline_stage.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

// Returns where each rank lies, as the keys say. INVALID_ARGUMENT: so many ranks do not divide that
// way; the message has the keys and the numbers.
absl::StatusOr<RankLayout> LayoutOf(const RunConfig& config, int64_t num_ranks);

// Returns how units are cut, and when their gradients are added up, on the CPU.
UnitOptions UnitOptionsOf(const RunConfig& config);

// Returns the stages of the layout's pipelines. Errors: those of CheckLayout and of DealStages, for
// a model that the run's ranks cannot share.
absl::StatusOr<ModelStages> StagesOfRun(const ModelSpec& spec, const RunConfig& config,
                                        const RankLayout& layout);

struct PartOfRun {
  std::unique_ptr<GatheredModel> model;
  std::unique_ptr<PipelineStage> stage;  // Null: there are no pipelines. It names the model.
};

// COLLECTIVE over the job. Returns this rank's part, without values. `device` is where it computes,
// or the meta device for a dry run. `stages` are those of StagesOfRun. The communicator outlives
// it. INVALID_ARGUMENT: this rank would have nothing. Others: as MakeModelOfRank and
// PipelineStage::Make.
absl::StatusOr<PartOfRun> MakePartOfRun(const ModelSpec& spec, const RunConfig& config,
                                        const RankLayout& layout, const ModelStages& stages,
                                        Communicator& communicator, torch::Device device);

}  // namespace gemini::trainer
