// SPDX-License-Identifier: Apache-2.0
// Moves a piece of a transfer on the calling thread, for slabs whose pages are not registered with
// the kernel.
// Thread: any. Blocks: on the disk, and for as long as the kernel takes to find or to clear the
//         slab's pages.
#pragma once
#include "absl/status/status.h"
#include "server/nvme/nvme_queue.h"

namespace gemini::server {

// Errors: as of MovedBytes, or of mmap(2).
absl::Status MovePiece(NvmeQueue::Piece piece);

}  // namespace gemini::server
