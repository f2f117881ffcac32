// SPDX-License-Identifier: Apache-2.0
// Chooses the engine of the NVMe I/O: io_uring where it works, else threads with pread and pwrite.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "server/loop/event_loop.h"
#include "server/loop/server_options.h"
#include "server/nvme/nvme_io.h"

namespace gemini::server {

// Tries the engine before it is returned; one log line names it, and why. Destroy it before `loop`,
// on the loop's thread. FAILED_PRECONDITION: `wanted` is kUring, which does not work here.
absl::StatusOr<std::unique_ptr<NvmeIo>> ChooseNvmeIo(NvmeEngine wanted, EventLoop& loop);

}  // namespace gemini::server
