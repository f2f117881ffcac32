// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/model_of_ranks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/status_macros.h"
#include "trainer/families/sizes_of_spec.h"
#include "trainer/parallel/sequence_check.h"
#include "trainer/parallel/sequence_layers.h"
#include "trainer/parallel/tensor_fit.h"
#include "trainer/parallel/tensor_layers_1d.h"
#include "trainer/parallel/tensor_layers_2d.h"
#include "trainer/parallel/tensor_layers_3d.h"

namespace gemini::trainer {
namespace {

using policies::TensorAxis;

// COLLECTIVE over the job. All ranks make the groups of all lines in one order.
absl::StatusOr<std::unique_ptr<TensorLayers>> DividedLayers(const ModelSpec& spec,
                                                            const torch::TensorOptions& options,
                                                            Communicator& communicator,
                                                            const RankLayout& layout) {
  const auto line = [&](absl::string_view name, TensorAxis axis) -> absl::StatusOr<RankLine> {
    GEMINI_ASSIGN_OR_RETURN(const RankGroup* const group,
                            communicator.MakeGroup(name, layout.Lines(axis)));
    return RankLine{&communicator, group};
  };
  const policies::TensorGrid& grid = layout.grid();
  GridLines lines;
  GEMINI_ASSIGN_OR_RETURN(lines.j, line("tensor j", TensorAxis::kJ));
  if (grid.mode() == policies::TensorMode::k1d) {
    GEMINI_ASSIGN_OR_RETURN(const RankGroup* const copies,
                            communicator.MakeGroup("key heads", layout.Neighbours(CopiesOfKeyHeads(
                                                                    spec, grid.num_ranks()))));
    return std::make_unique<TensorLayers1d>(
        options, lines.j, RankLine{&communicator, copies},
        layout.sequence().sharing == SequenceSharing::kMegatron);
  }
  GEMINI_ASSIGN_OR_RETURN(lines.i, line("tensor i", TensorAxis::kI));
  GEMINI_ASSIGN_OR_RETURN(lines.k, line("tensor k", TensorAxis::kK));
  const int64_t place = layout.place(communicator.rank());
  return std::make_unique<GridLayers>(options, grid.mode() == policies::TensorMode::k3d
                                                   ? PlanOf3d(grid, place, lines)
                                                   : PlanOf2d(grid, place, lines));
}

// Refuses the ways in which ranks do not share a model of its task.
absl::Status CheckWays(const ModelSpec& spec, const RankLayout& layout) {
  const policies::SharingWays can = SharingWaysOf(spec);
  const policies::TensorGrid& grid = layout.grid();
  const SequenceSharing sharing = layout.sequence().sharing;
  const bool is_line = grid.mode() == policies::TensorMode::k1d;
  std::string key;
  if (grid.num_ranks() > 1 && !(is_line ? can.in_lines : can.in_grids)) {
    key = absl::StrCat("--tensor ", policies::TensorModeName(grid.mode()));
  } else if (sharing != SequenceSharing::kNone &&
             !(sharing == SequenceSharing::kMegatron ? can.between_layers : can.on_sequence_axis)) {
    key = absl::StrCat("--sequence-parallel ", SequenceSharingName(sharing));
  }
  if (key.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      key, " shares no layers of ", spec.pair_trunk.has_value() ? "a pair trunk with " : "",
      "the task ", NameOf(spec.task.kind),
      " among ranks: use --tensor 1d, --zero or --pipeline, which share those of all tasks"));
}

}  // namespace

absl::Status CheckLayout(const ModelSpec& spec, const RankLayout& layout, int64_t batch,
                         int64_t sequence) {
  const policies::TensorGrid& grid = layout.grid();
  GEMINI_RETURN_IF_ERROR(CheckWays(spec, layout));
  const bool is_line = grid.mode() == policies::TensorMode::k1d || grid.num_ranks() == 1;
  if (!is_line) return CheckTensorGrid(spec, grid, batch);
  GEMINI_RETURN_IF_ERROR(CheckTensor1d(spec, grid.num_ranks()));
  return CheckSequenceSharing(spec, layout, sequence);
}

absl::StatusOr<std::unique_ptr<TensorLayers>> MakeLayersOfRank(const ModelSpec& spec,
                                                               torch::ScalarType type,
                                                               Communicator& communicator,
                                                               const RankLayout& layout) {
  const int64_t num_places = layout.grid().num_ranks();
  const torch::TensorOptions on_meta = torch::dtype(type).device(torch::kMeta);
  std::unique_ptr<TensorLayers> layers;
  if (num_places > 1) {
    GEMINI_ASSIGN_OR_RETURN(layers, DividedLayers(spec, on_meta, communicator, layout));
  }
  if (layout.shares_sequences()) {
    GEMINI_ASSIGN_OR_RETURN(const RankGroup* const group,
                            communicator.MakeGroup("sequence", layout.SequenceLines()));
    const RankLine line = {&communicator, group};
    const EqualPart heads = {layout.place(communicator.rank()), num_places};
    layers = layers == nullptr ? std::make_unique<SequenceLayers>(on_meta, line, layout.sequence())
                               : std::make_unique<SequenceLayers>(std::move(layers), heads, line,
                                                                  layout.sequence());
  }
  return layers;
}

absl::StatusOr<std::unique_ptr<GatheredModel>> MakeModelOfRank(
    const ModelSpec& spec, torch::ScalarType type, Communicator& communicator,
    const RankLayout& layout, const UnitOptions& options,
    const std::optional<ModelStages>& stages) {
  const bool shares_layers = layout.ranks_of_row() > 1;
  if (!shares_layers && layout.pipeline_ranks() == 1) {
    return GatheredModel::Make(spec, type, communicator, communicator.world(), options);
  }
  GEMINI_ASSIGN_OR_RETURN(const RankGroup* const shards,
                          communicator.MakeGroup("shards", layout.parts()));
  std::unique_ptr<TensorLayers> layers;
  if (shares_layers) {
    GEMINI_ASSIGN_OR_RETURN(layers, MakeLayersOfRank(spec, type, communicator, layout));
  }
  std::optional<PipelinePlace> place;
  if (layout.pipeline_ranks() > 1) {
    GEMINI_ASSIGN_OR_RETURN(const RankGroup* const ends,
                            communicator.MakeGroup("pipeline ends", layout.EndsOfPipelines()));
    place.emplace(PipelinePlace{
        .stages = *stages, .rank = layout.pipeline_rank(communicator.rank()), .ends = ends});
  }
  UnitOptions own = options;
  // There is nobody to divide a part with.
  if (shards->size() == 1) own.division = UnitDivision::kReplicas;
  return GatheredModel::Make(spec, type, communicator, *shards, own, layers.get(), place);
}

}  // namespace gemini::trainer
