// SPDX-License-Identifier: Apache-2.0
// Sums the squares of a bundle's pieces for trust ratios (client/kernels/trust_ratio.h), from its
// committed values and its gradient. This is done before the intent is recorded, because the intent
// contains the ratios.
// Thread: any. `pieces` are in chunk order, `intent` is complete except for the ratios.
#pragma once
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/host/chunk_store.h"
#include "client/kernels/trust_ratio.h"
#include "client/kernels/trust_run.h"
#include "client/update/bundle_update.h"
#include "gemini/ids.h"
#include "gemini/shm/intent_shm.h"
#include "gemini/state_format.h"
#include "gemini/system/worker_team.h"

namespace gemini::client {

// Appends to `by_tensor`, at the index of each tensor that has a gradient, the squares of its part
// of the bundle, from the chunks in HOST or NVMe. Call it for bundles in the order of their
// tensors' elements. Blocks for NVMe I/O, with the chunks of one bundle held. Errors: of
// ChunkStore::Acquire.
absl::Status AppendBundleTrust(ChunkStore& store, BundleId bundle,
                               absl::Span<const TensorPiece> pieces, const Intent& intent,
                               absl::Span<TrustSquares> by_tensor, WorkerTeam& team);

// Returns the run of each piece whose tensor has a gradient, for a bundle that is on DEVICE.
std::vector<TrustRun> TrustRunsOf(const BundleInPlace& bundle, const StateFormat& format,
                                  int64_t chunk_bytes, absl::Span<const TensorPiece> pieces,
                                  const Intent& intent);

}  // namespace gemini::client
