// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/part_of_run.h"

#include <algorithm>
#include <utility>

#include "client/torch/model/element_types.h"
#include "gemini/system/status_macros.h"
#include "policies/pipeline/pipeline_schedule.h"
#include "trainer/config/mesh_of_keys.h"
#include "trainer/parallel/model_of_ranks.h"
#include "trainer/parallel/stage_dealing.h"

namespace gemini::trainer {

absl::StatusOr<RankLayout> LayoutOf(const RunConfig& config, int64_t num_ranks) {
  GEMINI_ASSIGN_OR_RETURN(const policies::TensorGrid grid, GridOfKeys(config, num_ranks));
  GEMINI_ASSIGN_OR_RETURN(const policies::Mesh mesh, MeshOfKeys(config, num_ranks));
  SequenceLayout sequence;
  for (const SequenceSharing one :
       {SequenceSharing::kMegatron, SequenceSharing::kUlysses, SequenceSharing::kRing}) {
    if (config.sequence_parallel == SequenceSharingName(one)) sequence.sharing = one;
  }
  sequence.zigzag =
      sequence.sharing == SequenceSharing::kRing && config.sequence_layout == "zigzag";
  return RankLayout(mesh, grid, sequence);
}

UnitOptions UnitOptionsOf(const RunConfig& config) {
  const int zero = config.zero_stage();
  return {.division = zero == 0   ? UnitDivision::kReplicas
                      : zero == 3 ? UnitDivision::kShards
                                  : UnitDivision::kShardsAndWhole,
          .sync = config.adds_gradients_once() ? GradientSync::kLast : GradientSync::kEach,
          .block_elements = ShardBlockElements(config.format().moments)};
}

absl::StatusOr<ModelStages> StagesOfRun(const ModelSpec& spec, const RunConfig& config,
                                        const RankLayout& layout) {
  absl::Status fits = CheckLayout(spec, layout, config.batch, config.sequence);
  absl::StatusOr<ModelStages> stages = DealStages(
      spec, config.sequence, {.ranks = layout.pipeline_ranks(), .chunks = config.pipeline_chunks},
      config.pipeline_split);
  fits.Update(stages.status());
  if (!fits.ok()) return fits;
  return stages;
}

absl::StatusOr<PartOfRun> MakePartOfRun(const ModelSpec& spec, const RunConfig& config,
                                        const RankLayout& layout, const ModelStages& stages,
                                        Communicator& communicator, torch::Device device) {
  const RankGroup* pipeline = nullptr;
  if (layout.pipeline_ranks() > 1) {  // Here, where no rank can have failed alone.
    GEMINI_ASSIGN_OR_RETURN(pipeline, communicator.MakeGroup("pipeline", layout.Pipelines()));
    GEMINI_RETURN_IF_ERROR(communicator.PrepareMessages(*pipeline, MessagePaths::kNeighbours));
  }
  UnitOptions options = UnitOptionsOf(config);
  options.device = device;
  PartOfRun part;
  GEMINI_ASSIGN_OR_RETURN(
      part.model, MakeModelOfRank(spec, client::hooks::ScalarTypeOf(config.element()), communicator,
                                  layout, options, stages));
  part.model->set_gather_ahead(config.gather_ahead > 0);
  part.model->set_recompute(config.recompute);
  if (std::ranges::all_of(part.model->units(),
                          [](const auto& unit) { return unit->parameters().empty(); })) {
    return absl::InvalidArgumentError(
        "the model is too small to give this rank a part of it: start fewer ranks");
  }
  if (pipeline == nullptr) return part;
  GEMINI_ASSIGN_OR_RETURN(const policies::PipelineSchedule schedule,
                          policies::ParsePipelineSchedule(config.pipeline_schedule));
  GEMINI_ASSIGN_OR_RETURN(part.stage, PipelineStage::Make(*part.model, communicator, *pipeline,
                                                          schedule, config.accumulate));
  return part;
}

}  // namespace gemini::trainer
