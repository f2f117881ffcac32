// SPDX-License-Identifier: Apache-2.0
// Asks the kernel whether pages of a memfd are swapped out.
// Thread: any. Waits for no disk.
#pragma once
#include <cstdint>

namespace gemini::server {

// Returns whether any page of `fd` in [offset_bytes, offset_bytes + size_bytes) is swapped out.
// Returns false where the kernel cannot say (cachestat(2), before Linux 6.5).
bool IsSwappedOut(int fd, int64_t offset_bytes, int64_t size_bytes);

}  // namespace gemini::server
