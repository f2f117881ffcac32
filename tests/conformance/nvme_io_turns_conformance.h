// SPDX-License-Identifier: Apache-2.0
// What every NvmeIo must do for several tenants: they take turns by bytes, and what a space that is
// closed has queued is dropped. A part of nvme_io_conformance.h.
#pragma once
#include <atomic>
#include <latch>

#include "tests/conformance/nvme_io_fixture.h"

namespace gemini::server {

// One tenant has queued 64 transfers of 32 MiB, far more than an engine has under way at a time.
class NvmeIoTurnsConformance : public NvmeIoConformance {
 protected:
  static constexpr int64_t kLong = 32 * kMiB;
  static constexpr int kTransfers = 64;
  enum Tenants : uint64_t { kGreedy = 7, kModest = 8 };
  enum Spaces : uint64_t { kOne = 1, kOther = 2 };

  void SetUp() override {
    NvmeIoConformance::SetUp();
    ASSERT_EQ(::posix_fallocate(file_.get(), 0, kLong), 0);
  }
  NvmeTransfer Long(uint64_t space) const {
    return {IoOperation::kWrite, slab_.fd.get(), 0, nvme_.get(), 0, kLong, kGreedy, space};
  }
  void SubmitGreedy(int transfers, uint64_t space) {
    for (int i = 0; i < transfers; ++i) {
      io_->Submit(Long(space), [this](const absl::Status& status) {
        (status.ok() ? moved_ : absl::IsAborted(status) ? aborted_ : failed_) += 1;
        left_.count_down();
      });
    }
  }

  const MappedSlab slab_{kLong};
  std::atomic<int> moved_ = 0;
  std::atomic<int> aborted_ = 0;
  std::atomic<int> failed_ = 0;
  std::latch left_{kTransfers};
};

TEST_P(NvmeIoTurnsConformance, ATenantWaitsForItsTurnAndNotForAllThatAnotherHasQueued) {
  SubmitGreedy(kTransfers, kOne);
  NvmeTransfer modest = Transfer(IoOperation::kRead, 0, 0);
  modest.tenant = kModest;
  for (int i = 0; i < 10; ++i) ASSERT_OK(Run(modest));
  // Ten turns: the other one's were as many, with what was under way before.
  EXPECT_LT(moved_, kTransfers / 2);
  left_.wait();
  EXPECT_EQ(moved_, kTransfers);
}

TEST_P(NvmeIoTurnsConformance, WhatASpaceHasQueuedIsDroppedAndNothingElse) {
  SubmitGreedy(kTransfers / 2, kOne);
  SubmitGreedy(1, kOther);
  SubmitGreedy(kTransfers / 2 - 1, kOne);
  NvmeTransfer modest = Transfer(IoOperation::kRead, 0, 0);
  modest.tenant = kModest;
  modest.space = kOne;
  std::latch modest_left(1);
  absl::Status modest_status;
  io_->Submit(modest, [&](const absl::Status& status) {
    modest_status = status;
    modest_left.count_down();
  });
  io_->Cancel(kGreedy, kOne);
  io_->Cancel(kGreedy, kOne);
  io_->Cancel(kGreedy + 100, kOne);  // Nobody.
  left_.wait();
  modest_left.wait();
  EXPECT_OK(modest_status);
  EXPECT_GE(moved_, 1);  // At least that of the other space.
  EXPECT_EQ(failed_, 0);
  // What the kernel had may have been all of one or two.
  EXPECT_GE(aborted_, kTransfers - 4);
  EXPECT_EQ(moved_ + aborted_, kTransfers);
  // The engine goes on for that very space.
  EXPECT_OK(Run(Long(kOne)));
}

}  // namespace gemini::server
