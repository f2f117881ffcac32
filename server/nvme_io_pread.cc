// SPDX-License-Identifier: Apache-2.0
#include "server/nvme_io_pread.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/errno_status.h"
#include "gemini/status_macros.h"
#include "server/slab_window.h"
#include "server/worker_thread.h"

namespace gemini::server {
namespace {

absl::Status Transfer(const NvmeTransfer& transfer) {
  // Mapped for this one transfer: otherwise the server keeps slabs unmapped, so that they do not
  // count as its memory. The kernel reaches the mapping on our behalf: a page that it cannot bring
  // back is EFAULT here, not a signal.
  GEMINI_ASSIGN_OR_RETURN(
      const SlabWindow window,
      SlabWindow::Map(transfer.host_fd, transfer.host_offset_bytes, transfer.size_bytes));
  const bool reads = transfer.operation == IoOperation::kRead;
  int64_t moved = 0;
  while (moved < transfer.size_bytes) {
    const int64_t left = transfer.size_bytes - moved;
    const int64_t offset = transfer.nvme_offset_bytes + moved;
    const ssize_t count = reads ? ::pread(transfer.nvme_fd, window.data() + moved, left, offset)
                                : ::pwrite(transfer.nvme_fd, window.data() + moved, left, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return ErrnoStatus(errno,
                         absl::StrCat(reads ? "pread " : "pwrite ", left, " bytes at ", offset));
    }
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat("the extent ends at ", offset, ", ", left, " bytes early"));
    }
    moved += count;  // A short transfer goes on where it stopped.
  }
  return absl::OkStatus();
}

class PreadNvmeIo : public NvmeIo {
 public:
  explicit PreadNvmeIo(int num_threads) {
    for (int i = 0; i < num_threads; ++i) {
      workers_.push_back(std::make_unique<WorkerThread>(absl::StrCat("nvme-io-", i)));
    }
  }

  ~PreadNvmeIo() override { stopping_ = true; }

  void Submit(const NvmeTransfer& transfer, Done done) override {
    // Round robin: chunks are of one size, so the queues stay even.
    workers_[next_++ % workers_.size()]->Run([this, transfer, done = std::move(done)]() mutable {
      done(stopping_ ? absl::AbortedError("the server stops") : Transfer(transfer));
    });
  }

 private:
  size_t next_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::unique_ptr<WorkerThread>> workers_;  // Last: their jobs use what is above.
};

}  // namespace

std::unique_ptr<NvmeIo> MakePreadNvmeIo(int num_threads) {
  return std::make_unique<PreadNvmeIo>(std::max(1, num_threads));
}

}  // namespace gemini::server
