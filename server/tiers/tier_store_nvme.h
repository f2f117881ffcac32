// SPDX-License-Identifier: Apache-2.0
// Makes NVME memory as files. A file is allocated when it is granted and unlinked at once, so that
// a crash of the server leaves nothing behind. Its mode is 0600.
// Shares: a grant is divided over the directories in proportion to the free room of each, in whole
//         slots. If a directory is full or fails, the others provide its part if they can, with one
//         line in the log.
#pragma once
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/loop/server_options.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

// Probes each directory by making a file in it, and by moving a page past the page cache: extents
// are opened with O_DIRECT where that works, and where not a log line says why. Who reads or writes
// extents does so at multiples of kPageBytes, from and to memory at such. INVALID_ARGUMENT: a path
// is no directory, or is a symbolic link. PERMISSION_DENIED: it cannot be written. The message
// names the path.
absl::StatusOr<std::unique_ptr<TierStore>> MakeNvmeTierStore(
    const std::vector<NvmeDirectory>& directories);

}  // namespace gemini::server
