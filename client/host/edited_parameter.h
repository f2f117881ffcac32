// SPDX-License-Identifier: Apache-2.0
// A parameter of 16 bits that others than the update have changed, as by param.copy_() under
// NoGradGuard: its master has to follow. Elements that show another number get that as their value,
// exactly; the others keep theirs, with all that 16 bits do not show.
// Thread: any. Blocks for NVME I/O. Memory: two HOST slots a chunk of the value, and those of the
//         old version.
#pragma once
#include "absl/status/status.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

// Whether the chunk is a parameter's that has a master.
bool HasMaster(const ChunkStore& store, ChunkId chunk);

// Whether the bundle's parameter or its master is on DEVICE alone, where an update made it: what is
// dirty there is the committed version then, and no edit's.
bool IsOnDeviceAlone(const ChunkStore& store, BundleId bundle);

// Commits `edited`, a spare with the new bytes of the param chunk, and the master that goes with
// it, at the bundle's step. Errors: of ChunkStore::Acquire and AcquireSpare; nothing has changed
// then.
absl::Status CommitEdited(ChunkStore& store, ChunkId chunk, HostChunk edited);

}  // namespace gemini::client
