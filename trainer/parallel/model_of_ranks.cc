// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/model_of_ranks.h"

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/tensor_layers_1d.h"

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
  return CheckTensor1d(spec, num_places, parts);
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
