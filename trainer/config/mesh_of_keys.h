// SPDX-License-Identifier: Apache-2.0
// Derives from the keys of a run how its ranks are laid out.
// Pure: every rank computes the same.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "policies/mesh/mesh.h"
#include "policies/mesh/tensor_grid.h"
#include "trainer/config/run_config.h"

namespace gemini::trainer {

// `keys` have passed RunKeys' checks. INVALID_ARGUMENT: so many ranks do not divide; the message
// names the keys and the sizes.
absl::StatusOr<policies::Mesh> MeshOfKeys(const SharingKeys& keys, int64_t num_ranks);
// Returns the grid along the mesh's tensor axis; that of one rank if no layer is shared.
absl::StatusOr<policies::TensorGrid> GridOfKeys(const SharingKeys& keys, int64_t num_ranks);

}  // namespace gemini::trainer
