// SPDX-License-Identifier: Apache-2.0
#include "server/nvme_io_progress.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "gemini/errno_status.h"
#include "gemini/layout.h"

namespace gemini::server {

absl::StatusOr<int64_t> MovedBytes(const NvmeTransfer& transfer, int64_t begin_bytes,
                                   int64_t size_bytes, int64_t result) {
  if (result >= size_bytes) return size_bytes;
  if (result == -EINTR || result == -EAGAIN) return 0;
  if (result == -ECANCELED) return absl::AbortedError("the server stops");
  const bool reads = transfer.operation == IoOperation::kRead;
  const int64_t offset = transfer.nvme_offset_bytes + begin_bytes;
  if (result < 0) {
    return ErrnoStatus(static_cast<int>(-result),
                       absl::StrCat(reads ? "read " : "write ", size_bytes, " bytes at ", offset));
  }
  const int64_t moved = result / kPageBytes * kPageBytes;
  if (moved == 0) {
    return absl::DataLossError(absl::StrCat("the extent ends at ", offset + result, ", ",
                                            size_bytes - result, " bytes early"));
  }
  return moved;
}

}  // namespace gemini::server
