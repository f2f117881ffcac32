// SPDX-License-Identifier: Apache-2.0
// Commits a 16-bit parameter that something other than an update has changed, such as
// param.copy_() under NoGradGuard, and makes its master follow. Elements whose 16 bits have changed
// get the new number as their exact value. The others keep their fp32 value, including what 16 bits
// do not show.
// Thread: any. Blocks for NVME I/O.
// Memory: two HOST slots for each chunk of the value, one with its old and one with its new bytes.
#pragma once
#include "absl/status/status.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

// Returns whether the chunk is a parameter's and the parameter has a master.
bool HasMaster(const ChunkStore& store, ChunkId chunk);

// Returns whether the bundle's parameter or its master is on DEVICE alone, where an update made it.
// Dirty bytes on DEVICE are then the committed version, and no edit.
bool IsOnDeviceAlone(const ChunkStore& store, BundleId bundle);

// Commits `edited`, a spare with the new bytes of the param chunk `chunk`, and a master that
// matches it, at the bundle's committed step. The chunk must have a master. Errors: of
// ChunkStore::Acquire and AcquireSpare; nothing has changed then.
absl::Status CommitEdited(ChunkStore& store, ChunkId chunk, HostChunk edited);

}  // namespace gemini::client
