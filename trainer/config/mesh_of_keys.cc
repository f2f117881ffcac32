// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/mesh_of_keys.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

using policies::TensorMode;

absl::Status OfKeys(absl::string_view keys, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(keys, ": ", why.message()));
}

}  // namespace

absl::StatusOr<policies::Mesh> MeshOfKeys(const SharingKeys& keys, int64_t num_ranks) {
  GEMINI_ASSIGN_OR_RETURN(const policies::MeshOrder order,
                          policies::ParseMeshOrder(keys.rank_order));
  absl::StatusOr<policies::Mesh> mesh =
      policies::Mesh::Make(num_ranks,
                           {.pipeline = keys.pipeline,
                            .sequence = keys.sequence_ranks(num_ranks),
                            .tensor = keys.tensor_ranks(num_ranks)},
                           order);
  if (!mesh.ok()) return OfKeys("--pipeline, --tensor-size, --sequence-size", mesh.status());
  return mesh;
}

absl::StatusOr<policies::TensorGrid> GridOfKeys(const SharingKeys& keys, int64_t num_ranks) {
  TensorMode mode = TensorMode::k1d;  // Of one rank as well, which shares no layer.
  for (const TensorMode one : {TensorMode::k2d, TensorMode::k2Point5d, TensorMode::k3d}) {
    if (keys.tensor == policies::TensorModeName(one)) mode = one;
  }
  absl::StatusOr<policies::TensorGrid> grid =
      policies::TensorGrid::Make(mode, keys.tensor_ranks(num_ranks), keys.tensor_depth);
  if (!grid.ok()) {
    return OfKeys(
        absl::StrCat(keys.tensor_size > 0 ? "--tensor-size of " : "", "--tensor ", keys.tensor),
        grid.status());
  }
  return grid;
}

}  // namespace gemini::trainer
