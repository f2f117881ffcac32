// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/piece_move.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "gemini/system/status_macros.h"
#include "server/nvme/nvme_io_progress.h"
#include "server/nvme/slab_window.h"

namespace gemini::server {

absl::Status MovePiece(NvmeQueue::Piece piece) {
  const NvmeTransfer& transfer = piece.of->transfer;
  // Mapped for this one piece: otherwise the server keeps slabs unmapped, so that they do not count
  // as its memory. The kernel reaches the mapping on our behalf: a page that it cannot bring back
  // is EFAULT here, not a signal.
  GEMINI_ASSIGN_OR_RETURN(
      const SlabWindow window,
      SlabWindow::Map(transfer.host_fd, transfer.host_offset_bytes + piece.begin_bytes,
                      piece.size_bytes));
  const bool reads = transfer.operation == IoOperation::kRead;
  std::byte* data = window.data();
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
  return absl::OkStatus();
}

}  // namespace gemini::server
