// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/swapped_pages.h"

#include <unistd.h>

namespace gemini::server {
namespace {

// As in linux/mman.h of Linux 6.5, which the headers of Debian 12 do not have.
constexpr long kCachestat = 451;  // On every architecture.
struct CachestatRange {
  uint64_t offset_bytes;
  uint64_t size_bytes;
};
struct Cachestat {
  uint64_t cached_pages;
  uint64_t dirty_pages;
  uint64_t written_pages;  // Being written back now.
  uint64_t evicted_pages;  // Of a memfd: swapped out.
  uint64_t recently_evicted_pages;
};

}  // namespace

// mincore(2) does not tell: to it, a page that was allocated and never touched is missing too.
bool IsSwappedOut(int fd, int64_t offset_bytes, int64_t size_bytes) {
  CachestatRange range = {static_cast<uint64_t>(offset_bytes), static_cast<uint64_t>(size_bytes)};
  Cachestat stat = {};
  return ::syscall(kCachestat, fd, &range, &stat, 0u) == 0 && stat.evicted_pages > 0;
}

}  // namespace gemini::server
