// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_io_pread.h"

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "gemini/system/mutex.h"
#include "server/loop/worker_thread.h"
#include "server/nvme/nvme_queue.h"
#include "server/nvme/piece_move.h"

namespace gemini::server {
namespace {

// Each thread has one piece in the kernel, which keeps as many of its parts in flight as the disk
// takes.
class PreadNvmeIo : public NvmeIo {
 public:
  explicit PreadNvmeIo(int num_threads) {
    for (int i = 0; i < num_threads; ++i) {
      workers_.push_back(std::make_unique<WorkerThread>(absl::StrCat("nvme-io-", i)));
      workers_.back()->Run([this] { Serve(); });
    }
  }

  ~PreadNvmeIo() override {
    std::vector<NvmeQueue::Ended> ended;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      ended = queue_.CancelAll(absl::AbortedError("the server stops"));
      changed_.notify_all();
    }
    Report(ended);
  }

  void Submit(const NvmeTransfer& transfer, Done done) override {
    MutexLock lock(mutex_);
    queue_.Push(transfer, std::move(done));
    changed_.notify_one();
  }

  void Cancel(uint64_t tenant, uint64_t space) override {
    std::vector<NvmeQueue::Ended> ended;
    {
      MutexLock lock(mutex_);
      ended = queue_.Cancel(tenant, space);
    }
    Report(ended);
  }

  // Nothing of a slab is kept from one piece to the next.
  void Forget(absl::Span<const int>, absl::AnyInvocable<void()> forgotten) override { forgotten(); }

 private:
  static void Report(std::vector<NvmeQueue::Ended>& ended) {
    for (NvmeQueue::Ended& one : ended) one.done(one.status);
  }

  void Serve() {
    while (true) {
      std::optional<NvmeQueue::Piece> piece;
      {
        MutexLock lock(mutex_);
        while (!stopping_ && queue_.empty()) mutex_.WaitFor(changed_);
        piece = queue_.Next();
        if (!piece.has_value()) return;
      }
      const absl::Status status = MovePiece(*piece);
      std::optional<NvmeQueue::Ended> ended;
      {
        MutexLock lock(mutex_);
        ended = queue_.Finish(*piece, status);
      }
      if (ended.has_value()) ended->done(ended->status);
    }
  }

  Mutex mutex_;  // Never held over I/O or a `done`.
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  NvmeQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<WorkerThread>> workers_;  // Last: they use what is above.
};

}  // namespace

std::unique_ptr<NvmeIo> MakePreadNvmeIo(int num_threads) {
  return std::make_unique<PreadNvmeIo>(std::max(1, num_threads));
}

}  // namespace gemini::server
