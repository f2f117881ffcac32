// SPDX-License-Identifier: Apache-2.0
// The squares of a bundle's pieces that trust ratios are made of (client/trust_ratio.h), from its committed
// values and its gradient in HOST or NVMe: before the intent, which has the ratios.
// Thread: any; the team of threads that it is given computes, the same bits whatever their number. Blocks for
//         NVMe I/O. Memory: the chunks of one bundle are held.
#pragma once
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/bundle_update.h"
#include "client/chunk_store.h"
#include "client/trust_ratio.h"
#include "gemini/ids.h"
#include "gemini/intent_shm.h"
#include "gemini/worker_team.h"

namespace gemini::client {

// Appends those of the bundle's tensors with a gradient to theirs, by tensor. Bundles come in the order of
// their tensors' elements, `pieces` in chunk order. `intent` is complete but for the ratios.
// Errors: of ChunkStore::Acquire.
absl::Status AppendBundleTrust(ChunkStore& store, BundleId bundle,
                               absl::Span<const TensorPiece> pieces, const Intent& intent,
                               absl::Span<TrustSquares> by_tensor, WorkerTeam& team);

}  // namespace gemini::client
