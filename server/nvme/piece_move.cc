// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/piece_move.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "gemini/system/check.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "server/nvme/nvme_io_progress.h"
#include "server/tiers/huge_pages.h"

namespace gemini::server {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

std::unique_ptr<void, Free> MakeBuffer() {
  std::unique_ptr<void, Free> buffer(std::aligned_alloc(kHugePageBytes, kNvmePieceBytes));
  GEMINI_CHECK(buffer != nullptr);
  // A virtio disk takes some 256 parts of memory at once, which is 1 MiB of small pages. The kernel
  // sorts what waits behind them by its place on the disk, and another's small write then waits for
  // as long as this tenant writes in ascending order. A failure leaves small pages.
  (void)::madvise(buffer.get(), kNvmePieceBytes, MADV_HUGEPAGE);
  return buffer;
}

// The calling thread's own, of one piece.
std::byte* Buffer() {
  thread_local const std::unique_ptr<void, Free> buffer = MakeBuffer();
  return static_cast<std::byte*>(buffer.get());
}

// Copies between a slab and memory: into `data` for a write to NVMe, out of it for a read.
absl::Status CopySlab(IoOperation operation, int fd, int64_t offset, std::byte* data,
                      int64_t size_bytes) {
  while (size_bytes > 0) {
    const ssize_t count = operation == IoOperation::kWrite ? ::pread(fd, data, size_bytes, offset)
                                                           : ::pwrite(fd, data, size_bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "copy a part of a slab");
    if (count == 0) return absl::DataLossError("a slab ends before its chunk does");
    data += count;
    offset += count;
    size_bytes -= count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MovePiece(NvmeQueue::Piece piece) {
  const NvmeTransfer& transfer = piece.of->transfer;
  const bool reads = transfer.operation == IoOperation::kRead;
  const int64_t slab_offset = transfer.host_offset_bytes + piece.begin_bytes;
  const int64_t size_bytes = piece.size_bytes;
  GEMINI_CHECK(size_bytes <= kNvmePieceBytes);
  std::byte* data = Buffer();
  if (!reads) {
    GEMINI_RETURN_IF_ERROR(
        CopySlab(transfer.operation, transfer.host_fd, slab_offset, data, size_bytes));
  }
  while (piece.size_bytes > 0) {
    const int64_t offset = transfer.nvme_offset_bytes + piece.begin_bytes;
    const ssize_t count = reads ? ::pread(transfer.nvme_fd, data, piece.size_bytes, offset)
                                : ::pwrite(transfer.nvme_fd, data, piece.size_bytes, offset);
    GEMINI_ASSIGN_OR_RETURN(const int64_t more,
                            MovedBytes(transfer, piece.begin_bytes, piece.size_bytes,
                                       count < 0 ? -errno : count, piece.refusals));
    data += more;
    piece.begin_bytes += more;
    piece.size_bytes -= more;
  }
  if (!reads) return absl::OkStatus();
  return CopySlab(transfer.operation, transfer.host_fd, slab_offset, Buffer(), size_bytes);
}

}  // namespace gemini::server
