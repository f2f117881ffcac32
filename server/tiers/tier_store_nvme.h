// SPDX-License-Identifier: Apache-2.0
// NVME as files: allocated when granted, mode 0600, unlinked at once (spaces are ephemeral), so
// that a crash of the server leaves nothing behind. A grant spans the directories in proportion to
// the room in each, whole slots; what a full or failing directory refuses the others give, if they
// can (one log line).
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
