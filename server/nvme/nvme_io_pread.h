// SPDX-License-Identifier: Apache-2.0
// NvmeIo by pread and pwrite on worker threads: works on every kernel and file system.
#pragma once
#include <memory>

#include "server/nvme/nvme_io.h"

namespace gemini::server {

// `num_threads` >= 1. Each has a piece (server/nvme/nvme_queue.h) in the kernel at a time;
// transfers end in any order.
std::unique_ptr<NvmeIo> MakePreadNvmeIo(int num_threads);

}  // namespace gemini::server
