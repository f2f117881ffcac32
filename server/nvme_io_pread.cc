// SPDX-License-Identifier: Apache-2.0
#include "server/nvme_io_pread.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/status_macros.h"
#include "server/nvme_io_progress.h"
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
  for (int64_t moved = 0; moved < transfer.size_bytes;) {
    std::byte* const data = window.data() + moved;
    const int64_t left = transfer.size_bytes - moved;
    const int64_t offset = transfer.nvme_offset_bytes + moved;
    const ssize_t count = reads ? ::pread(transfer.nvme_fd, data, left, offset)
                                : ::pwrite(transfer.nvme_fd, data, left, offset);
    GEMINI_ASSIGN_OR_RETURN(const int64_t more,
                            MovedBytes(transfer, moved, left, count < 0 ? -errno : count));
    moved += more;
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

  // A slab is mapped for the length of a transfer only.
  void Forget(absl::Span<const int>, absl::AnyInvocable<void()> forgotten) override { forgotten(); }

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
