// SPDX-License-Identifier: Apache-2.0
// A short-lived read-write mapping of a part of a slab, while the kernel registers its pages.
#pragma once
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "gemini/system/errno_status.h"
#include "server/tiers/huge_pages.h"

namespace gemini::server {

class SlabWindow {
 public:
  // `offset_bytes` is a multiple of the page size. Errors: as mmap(2).
  static absl::StatusOr<SlabWindow> Map(int fd, int64_t offset_bytes, int64_t size_bytes) {
    // At an address that lies in a huge page where the offset does: only so does the kernel map a
    // huge page by one entry. It chooses such an address by itself for none but long mappings.
    const int64_t skip_bytes = offset_bytes % kHugePageBytes;
    const int64_t room_bytes = skip_bytes + size_bytes + kHugePageBytes;
    void* const room = ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return ErrnoStatus(errno, "reserve addresses for a part of a slab");
    SlabWindow window(static_cast<std::byte*>(room), room_bytes);
    const auto begin = reinterpret_cast<uintptr_t>(room);
    window.data_ = window.room_ + ((begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes -
                                   begin + skip_bytes);
    if (::mmap(window.data_, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
               offset_bytes) == MAP_FAILED) {
      return ErrnoStatus(errno, "map a part of a slab");
    }
    // Takes 16 pages a fault where the kernel, reaching for them, takes one: half the time for 16
    // MiB (2 of 4 ms). Where it fails (before Linux 5.14) they come one by one.
    (void)::madvise(window.data_, size_bytes, MADV_POPULATE_READ);
    return window;
  }
  SlabWindow(SlabWindow&& other) noexcept { *this = std::move(other); }
  SlabWindow& operator=(SlabWindow&& other) noexcept {
    std::swap(room_, other.room_);
    std::swap(room_bytes_, other.room_bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~SlabWindow() {
    if (room_ != nullptr) ::munmap(room_, room_bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  SlabWindow(std::byte* room, int64_t room_bytes) : room_(room), room_bytes_(room_bytes) {}
  std::byte* room_ = nullptr;  // The addresses that it takes; the data is inside.
  int64_t room_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace gemini::server
