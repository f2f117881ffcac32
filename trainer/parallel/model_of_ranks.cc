// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/model_of_ranks.h"

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/tensor_fit.h"
#include "trainer/parallel/tensor_layers_1d.h"
#include "trainer/parallel/tensor_layers_2d.h"
#include "trainer/parallel/tensor_layers_3d.h"

namespace gemini::trainer {

using policies::TensorAxis;

absl::Status CheckLayout(const ModelSpec& spec, const RankLayout& layout, int64_t sequence) {
  const int64_t num_places = layout.grid().num_ranks();
  const bool parts = layout.sequence().sharing == SequenceSharing::kMegatron;
  if (parts && sequence % num_places != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sequence-parallel megatron of ", num_places, " ranks: --sequence ", sequence,
        " does not divide by ", num_places, ": use ",
        sequence > num_places ? absl::StrCat(sequence - sequence % num_places, " or ") : "",
        sequence + num_places - sequence % num_places));
  }
  if (layout.grid().mode() != policies::TensorMode::k1d) {
    return CheckTensorGrid(spec, layout.grid(), /*batch=*/0);
  }
  return CheckTensor1d(spec, num_places, parts);
}

namespace {

// COLLECTIVE over the job. All ranks make the groups of all lines in one order.
absl::StatusOr<std::unique_ptr<TensorLayers>> MakeLayersOfRank(const ModelSpec& spec,
                                                               torch::ScalarType type,
                                                               Communicator& communicator,
                                                               const RankLayout& layout) {
  const auto line = [&](absl::string_view name, TensorAxis axis) -> absl::StatusOr<RankLine> {
    GEMINI_ASSIGN_OR_RETURN(const RankGroup* const group,
                            communicator.MakeGroup(name, layout.Lines(axis)));
    return RankLine{&communicator, group};
  };
  const auto options = torch::dtype(type).device(torch::kMeta);
  const policies::TensorGrid& grid = layout.grid();
  GridLines lines;
  GEMINI_ASSIGN_OR_RETURN(lines.j, line("tensor j", TensorAxis::kJ));
  if (grid.mode() == policies::TensorMode::k1d) {
    GEMINI_ASSIGN_OR_RETURN(
        const RankGroup* const copies,
        communicator.MakeGroup("key heads", layout.Neighbours(CopiesOfKeyHeads(
                                                spec.attention.num_kv_heads, grid.num_ranks()))));
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

}  // namespace

absl::StatusOr<std::unique_ptr<GatheredLm>> MakeModelOfRank(const ModelSpec& spec,
                                                            torch::ScalarType type,
                                                            Communicator& communicator,
                                                            const RankLayout& layout,
                                                            const UnitOptions& options) {
  if (layout.grid().num_ranks() == 1) {
    return GatheredLm::Make(spec, type, communicator, communicator.world(), options);
  }
  GEMINI_ASSIGN_OR_RETURN(const RankGroup* const shards,
                          communicator.MakeGroup("shards", layout.parts()));
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<TensorLayers> layers,
                          MakeLayersOfRank(spec, type, communicator, layout));
  UnitOptions own = options;
  // There is nobody to divide a part with.
  if (shards->size() == 1) own.division = UnitDivision::kReplicas;
  return GatheredLm::Make(spec, type, communicator, *shards, own, layers.get());
}

}  // namespace gemini::trainer
