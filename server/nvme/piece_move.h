// SPDX-License-Identifier: Apache-2.0
// Moves a piece of a transfer on the calling thread, through a buffer of that thread's, for slabs
// whose pages are not registered with the kernel. The slab is not mapped: to map and unmap it takes
// the lock of the server's address space, which the thread that owns the metadata would wait for.
// Thread: any; each keeps a buffer of kNvmePieceBytes once it has moved a piece. Blocks: on the
//         disk, and for as long as the kernel takes to make the slab's missing pages for a read.
#pragma once
#include "absl/status/status.h"
#include "server/nvme/nvme_queue.h"

namespace gemini::server {

// DATA_LOSS: the slab ends early. The other errors are those of MovedBytes, and the kernel's where
// the slab is read or written.
absl::Status MovePiece(NvmeQueue::Piece piece);

}  // namespace gemini::server
