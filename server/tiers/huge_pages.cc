// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdint>

#include "gemini/layout.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Headers before Linux 6.1 have no name for it.
#endif

namespace gemini::server {
namespace {

// The kernel takes a lone small page for a huge one only if there is a first: a range without any
// has nothing to collapse. That one page is all that is copied.
bool MakeHuge(int fd, int64_t offset_bytes, std::byte* address) {
  return ::fallocate(fd, 0, offset_bytes, kPageBytes) == 0 &&
         ::madvise(address, kHugePageBytes, MADV_COLLAPSE) == 0;
}

}  // namespace

int64_t AllocateHugePages(int fd, int64_t size_bytes) {
  const int64_t whole_bytes = size_bytes / kHugePageBytes * kHugePageBytes;
  if (whole_bytes == 0) return 0;
  // Huge pages lie at multiples of their size in addresses too.
  const int64_t reserved_bytes = whole_bytes + kHugePageBytes;
  void* const reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return 0;
  const auto place = reinterpret_cast<uintptr_t>(reserved);
  const int64_t to_aligned = static_cast<int64_t>(-place % kHugePageBytes);
  std::byte* const aligned = static_cast<std::byte*>(reserved) + to_aligned;
  int64_t huge_bytes = 0;
  if (::mmap(aligned, whole_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
      MAP_FAILED) {
    while (huge_bytes < whole_bytes && MakeHuge(fd, huge_bytes, aligned + huge_bytes)) {
      huge_bytes += kHugePageBytes;
    }
  }
  ::munmap(reserved, reserved_bytes);
  return huge_bytes;
}

}  // namespace gemini::server
