// SPDX-License-Identifier: Apache-2.0
// NvmeIo by io_uring, with one deep queue. What is submitted in one turn of the loop is given to
// the kernel by one call at its end, in pieces, so that a single chunk keeps a disk's queue full.
// Completions wake the loop by an eventfd. Slabs stay registered with the ring (slab_pins.h).
// Pieces of slabs that the kernel refuses to register are moved by threads (piece_move.h).
// Owner:  the loop's thread: it submits, gets every `done` and `forgotten` in a turn of the loop,
//         and destroys the engine before the loop.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "server/loop/event_loop.h"
#include "server/nvme/nvme_io.h"

namespace gemini::server {

// Makes a ring and moves a page through it, there and back, before anybody depends on it; blocks
// for that long. PERMISSION_DENIED, UNIMPLEMENTED or another: this kernel or its settings have no
// io_uring for this process.
absl::StatusOr<std::unique_ptr<NvmeIo>> MakeUringNvmeIo(EventLoop& loop);

}  // namespace gemini::server
