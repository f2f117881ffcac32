// SPDX-License-Identifier: Apache-2.0
// Updates one bundle as its intent says: the pieces of all tensors in the bundle, by
// client/kernels/update_kernel.h. In HOST it updates out of place, then commits. It reads nothing
// but the intent and the chunks, so another process can repeat it with the same bits if this one
// dies.
// Thread: any, one for each bundle; the given team of threads computes. Blocks for NVMe I/O.
// Parts: the team takes runs of kUpdatePartElements. Bits depend on neither their size nor the
// number of threads.
// Memory: holds at most UpdateSlots HOST slots.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/host/chunk_store.h"
#include "client/kernels/device_kernels.h"
#include "client/kernels/update_kernel.h"
#include "gemini/ids.h"
#include "gemini/moment_format.h"
#include "gemini/shm/intent_shm.h"
#include "gemini/state_format.h"
#include "gemini/system/worker_team.h"

namespace gemini::client {

// The part of a tensor that is in one bundle. Offsets and size are in bytes of the parameter
// itself.
struct TensorPiece {
  int64_t tensor = 0;  // In the order of the space's layout.
  int64_t chunk_offset_bytes = 0;
  int64_t tensor_offset_bytes = 0;
  int64_t size_bytes = 0;
};

// Returns the settings for the update of tensor `tensor`, an index in the order of the space's
// layout.
UpdateSettings SettingsOf(const Intent& intent, int64_t tensor);

// Commits the bundle at the intent's step. `pieces` are all of the bundle, in chunk order. Tensors
// without a gradient keep their values; a moment that was never written counts as zeros. Returns
// whether there was anything to compute: a bundle without any gradient, or whose step is skipped,
// keeps its chunks. Errors: of ChunkStore; nothing is committed then.
absl::StatusOr<bool> UpdateBundle(ChunkStore& store, BundleId bundle,
                                  absl::Span<const TensorPiece> pieces, const Intent& intent,
                                  WorkerTeam& team);

// A bundle whose chunks are on DEVICE, with the address of each kind that it has.
struct BundleInPlace {
  BundleId bundle;
  KindMap<std::byte*> chunks;
};

// Updates in place with the same arithmetic: parameters, masters and moments become those of the
// intent's step. For spaces with fp32 moments. Tensors without a gradient keep their values.
// Commits nothing. The update is done when the kernels are.
void UpdateInPlace(const BundleInPlace& bundle, const StateFormat& format, int64_t chunk_bytes,
                   absl::Span<const TensorPiece> pieces, const Intent& intent,
                   DeviceKernels& kernels);

}  // namespace gemini::client
