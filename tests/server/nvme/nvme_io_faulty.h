// SPDX-License-Identifier: Apache-2.0
// A real NVMe engine of whose transfers one goes wrong: the Nth, in one of the ways in which disks
// do. And one place of extents that may be bad for good.
// Thread: as NvmeIo; NvmeFaults may be read and set from any.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/layout.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"
#include "server/loop/server_options.h"
#include "server/nvme/nvme_io.h"

namespace gemini::server {

enum class NvmeFault {
  kFails,     // Nothing is moved: EIO.
  kEndsHalf,  // The first half is moved: DATA_LOSS.
  kNoSpace,   // Nothing is moved: ENOSPC.
  kFlipsBit,  // All is moved and called good, but for one bit of what arrived.
};
inline constexpr std::array<NvmeFault, 4> kAllNvmeFaults = {
    NvmeFault::kFails, NvmeFault::kEndsHalf, NvmeFault::kNoSpace, NvmeFault::kFlipsBit};
constexpr absl::string_view NvmeFaultName(NvmeFault fault) {
  constexpr std::array<absl::string_view, 4> kNames = {"fails", "ends half", "no space",
                                                       "flips a bit"};
  return kNames[static_cast<int>(fault)];
}

// What is to go wrong, and what has; outlives the engine.
class NvmeFaults {
 public:
  // From now on: the `nth` transfer, from 1. 0: none.
  void Arm(NvmeFault fault, int64_t nth) {
    fault_ = fault;
    nth_ = nth;
    submitted_ = 0;
  }
  // From now on every write at that offset of an extent fails: EIO.
  void BreakPlace(int64_t nvme_offset_bytes) { broken_offset_bytes_ = nvme_offset_bytes; }
  int64_t writes_to_broken_place() const { return writes_to_broken_place_; }
  // Runs `action` in the server's thread once it has taken the next request, before anything is
  // moved.
  void AtNextSubmit(std::function<void()> action) {
    MutexLock lock(mutex_);
    at_submit_ = std::move(action);
  }
  // Whether the armed transfer was submitted; and how many were, since Arm.
  bool fired() const { return nth_ > 0 && submitted_ >= nth_; }
  int64_t submitted() const { return submitted_; }

 private:
  friend class NvmeIoFaulty;
  bool NextGoesWrong() {
    std::function<void()> action;
    {
      MutexLock lock(mutex_);
      action = std::exchange(at_submit_, nullptr);
    }
    if (action) action();
    return ++submitted_ == nth_;
  }
  bool IsBroken(const NvmeTransfer& transfer) {
    const bool broken = transfer.operation == IoOperation::kWrite &&
                        transfer.nvme_offset_bytes == broken_offset_bytes_;
    writes_to_broken_place_ += broken ? 1 : 0;
    return broken;
  }
  Mutex mutex_;
  std::function<void()> at_submit_ ABSL_GUARDED_BY(mutex_);
  std::atomic<NvmeFault> fault_ = NvmeFault::kFails;
  std::atomic<int64_t> nth_ = 0;
  std::atomic<int64_t> submitted_ = 0;
  std::atomic<int64_t> broken_offset_bytes_ = -1;
  std::atomic<int64_t> writes_to_broken_place_ = 0;
};

class NvmeIoFaulty : public NvmeIo {
 public:
  NvmeIoFaulty(std::unique_ptr<NvmeIo> real, NvmeFaults& faults)
      : faults_(faults), real_(std::move(real)) {}

  void Submit(const NvmeTransfer& transfer, Done done) override {
    if (faults_.IsBroken(transfer)) {
      done(ErrnoStatus(EIO, "planted"));
      return;
    }
    if (!faults_.NextGoesWrong()) {
      real_->Submit(transfer, std::move(done));
      return;
    }
    switch (faults_.fault_) {
      case NvmeFault::kFails:
        done(ErrnoStatus(EIO, "planted"));
        return;
      case NvmeFault::kNoSpace:
        done(ErrnoStatus(ENOSPC, "planted"));
        return;
      case NvmeFault::kEndsHalf: {
        NvmeTransfer half = transfer;
        half.size_bytes = transfer.size_bytes / 2 / kPageBytes * kPageBytes;
        if (half.size_bytes == 0) {
          done(absl::DataLossError("planted: ended before the first page"));
          return;
        }
        real_->Submit(half, [done = std::move(done)](const absl::Status&) mutable {
          done(absl::DataLossError("planted: ended early"));
        });
        return;
      }
      case NvmeFault::kFlipsBit:
        real_->Submit(transfer, [transfer, done = std::move(done)](absl::Status status) mutable {
          if (status.ok()) status = FlipBit(transfer);
          done(std::move(status));
        });
        return;
    }
  }
  void Cancel(uint64_t tenant, uint64_t space) override { real_->Cancel(tenant, space); }
  void Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) override {
    real_->Forget(host_fds, std::move(forgotten));
  }

 private:
  // In the middle of what arrived. By pages, so that a file that is open for direct I/O takes it.
  static absl::Status FlipBit(const NvmeTransfer& transfer) {
    const bool reads = transfer.operation == IoOperation::kRead;
    const int fd = reads ? transfer.host_fd : transfer.nvme_fd;
    const int64_t first = reads ? transfer.host_offset_bytes : transfer.nvme_offset_bytes;
    const int64_t offset = first + transfer.size_bytes / 2 / kPageBytes * kPageBytes;
    alignas(kPageBytes) std::array<std::byte, kPageBytes> page;
    if (::pread(fd, page.data(), page.size(), offset) != kPageBytes) {
      return ErrnoStatus(errno, "read the page whose bit is to be flipped");
    }
    page[kPageBytes / 3] ^= std::byte{0x10};
    if (::pwrite(fd, page.data(), page.size(), offset) != kPageBytes) {
      return ErrnoStatus(errno, "write the page whose bit was flipped");
    }
    return absl::OkStatus();
  }

  NvmeFaults& faults_;
  const std::unique_ptr<NvmeIo> real_;  // Last: its transfers end before the rest.
};

// A server of these options whose engine has the faults, which outlive it.
inline ServerOptions WithFaults(ServerOptions options, NvmeFaults& faults) {
  options.TESTING_ONLY_wrap_nvme_io = [&faults](std::unique_ptr<NvmeIo> io) {
    return std::make_unique<NvmeIoFaulty>(std::move(io), faults);
  };
  return options;
}

}  // namespace gemini::server
