// SPDX-License-Identifier: Apache-2.0
// Gives memfds huge pages. A disk moves bytes to and from 2 MiB of memory in one piece by few
// requests, where 512 pages of 4 KiB lie anywhere; and 2 MiB are cleared and given back by a few
// calls inside the kernel (docs/benchmarks.md has what that is worth).
// Thread: any. Blocks while the kernel clears pages: 0.17 s a GiB; where memory is in small pieces
//         the kernel first moves others' pages out of the way.
#pragma once
#include <cstdint>

namespace gemini::server {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Gives each whole 2 MiB of the first `size_bytes` of `fd`, a new memfd without pages that has that
// size, a page of that size, as long as the kernel has one. Returns the bytes that have theirs;
// what lies behind has pages of 4 KiB, or none yet. It asks by MADV_COLLAPSE (Linux 6.1), which
// needs no setting of the system's.
int64_t AllocateHugePages(int fd, int64_t size_bytes);

}  // namespace gemini::server
