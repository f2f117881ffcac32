// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_io_progress.h"

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "gemini/layout.h"
#include "gemini/system/errno_status.h"

namespace gemini::server {

absl::StatusOr<int64_t> MovedBytes(const NvmeTransfer& transfer, int64_t begin_bytes,
                                   int64_t size_bytes, int64_t result, int& refusals) {
  if (result >= size_bytes) return size_bytes;
  if (result == -ECANCELED) return absl::AbortedError("the server stops");
  const int64_t offset = transfer.nvme_offset_bytes + begin_bytes;
  const std::string what =
      absl::StrCat(transfer.operation == IoOperation::kRead ? "read " : "write ", size_bytes,
                   " bytes at ", offset);
  if (result == -EINTR || result == -EAGAIN) {
    if (++refusals < kMaxNvmeRefusals) return 0;
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": the kernel asked to try again ", refusals, " times in a row"));
  }
  refusals = 0;
  if (result < 0) return ErrnoStatus(static_cast<int>(-result), what);
  const int64_t moved = result / kPageBytes * kPageBytes;
  if (moved == 0) {
    return absl::DataLossError(absl::StrCat("the extent ends at ", offset + result, ", ",
                                            size_bytes - result, " bytes early"));
  }
  return moved;
}

}  // namespace gemini::server
