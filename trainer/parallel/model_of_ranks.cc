// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/model_of_ranks.h"

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/sequence_check.h"
#include "trainer/parallel/tensor_layers_1d.h"

namespace gemini::trainer {

using policies::TensorAxis;

absl::Status CheckLayout(const ModelSpec& spec, const RankLayout& layout, int64_t /*batch*/,
                         int64_t sequence) {
  const policies::TensorGrid& grid = layout.grid();
  const SequenceSharing sharing = layout.sequence().sharing;
  if (grid.mode() != policies::TensorMode::k1d && grid.num_ranks() > 1) {
    return absl::UnimplementedError(
        absl::StrCat("--tensor ", policies::TensorModeName(grid.mode()), " is not built yet"));
  }
  GEMINI_RETURN_IF_ERROR(
      CheckTensor1d(spec, grid.num_ranks(), sharing == SequenceSharing::kMegatron));
  GEMINI_RETURN_IF_ERROR(CheckSequenceSharing(spec, layout, sequence));
  if (sharing == SequenceSharing::kUlysses || sharing == SequenceSharing::kRing) {
    return absl::UnimplementedError(
        absl::StrCat("--sequence-parallel ", SequenceSharingName(sharing), " is not built yet"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GatheredLm>> MakeModelOfRank(const ModelSpec& spec,
                                                            torch::ScalarType type,
                                                            Communicator& communicator,
                                                            const RankLayout& layout,
                                                            const UnitOptions& options) {
  const int64_t num_places = layout.grid().num_ranks();
  if (num_places == 1) {
    return GatheredLm::Make(spec, type, communicator, communicator.world(), options);
  }
  GEMINI_ASSIGN_OR_RETURN(const RankGroup* const shards,
                          communicator.MakeGroup("shards", layout.parts()));
  GEMINI_ASSIGN_OR_RETURN(const RankGroup* const line,
                          communicator.MakeGroup("tensor j", layout.Lines(TensorAxis::kJ)));
  GEMINI_ASSIGN_OR_RETURN(
      const RankGroup* const copies,
      communicator.MakeGroup("key heads", layout.Neighbours(CopiesOfKeyHeads(
                                              spec.attention.num_kv_heads, num_places))));
  TensorLayers1d layers(torch::dtype(type).device(torch::kMeta), {&communicator, line},
                        {&communicator, copies},
                        layout.sequence().sharing == SequenceSharing::kMegatron);
  UnitOptions own = options;
  // There is nobody to divide a part with.
  if (shards->size() == 1) own.division = UnitDivision::kReplicas;
  return GatheredLm::Make(spec, type, communicator, *shards, own, &layers);
}

}  // namespace gemini::trainer
