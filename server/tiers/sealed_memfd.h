// SPDX-License-Identifier: Apache-2.0
// Makes anonymous memory that has a descriptor and whose size nobody can change: an unsealed
// truncate by one side kills the other by SIGBUS.
// Thread: any. Blocks while the kernel clears pages: 225 ms a GiB; destroying costs 124. Huge
//         pages: 170 and 20.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

enum class MemfdPages {
  kAllocated,  // Now, all of them.
  kHuge,       // The same, in huge pages as far as the kernel has them (huge_pages.h).
  kOnDemand,
};

// Makes a zero-filled memfd of `size_bytes` (> 0), CLOEXEC, sealed against shrinking, growing,
// further seals and, from Linux 6.3 on, execution. `name` is shown in /proc. RESOURCE_EXHAUSTED: no
// memory or descriptor left. PERMISSION_DENIED: the machine forbids memfds.
absl::StatusOr<UniqueFd> MakeSealedMemfd(absl::string_view name, int64_t size_bytes,
                                         MemfdPages pages);

// As above, allocated, and mapped read-write here; every later mapping or write by anyone is
// read-only (F_SEAL_FUTURE_WRITE).
struct ServerWritableMemfd {
  UniqueFd fd;
  MappedMemory memory;
};
absl::StatusOr<ServerWritableMemfd> MakeServerWritableMemfd(absl::string_view name,
                                                            int64_t size_bytes);

// Makes a memfd that holds `bytes` (not empty) and that nobody can write any more, this process
// included. Whoever has it can cut it shorter, so that its pages can be taken back: it is to be
// read and not mapped. RESOURCE_EXHAUSTED: no memory or descriptor left.
absl::StatusOr<UniqueFd> MakeReadOnlyMemfd(absl::string_view name, absl::string_view bytes);

// Gives the pages of [offset, offset + size) back to the kernel now; they read as zeros. Both are
// multiples of the page size.
void PunchHole(int fd, int64_t offset_bytes, int64_t size_bytes);

// Gives all pages back to the kernel now, though others may hold the descriptor (a forked child of
// a dead client does), then closes it.
void DestroyMemfd(UniqueFd fd, int64_t size_bytes);

}  // namespace gemini::server
