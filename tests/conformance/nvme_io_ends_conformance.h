// SPDX-License-Identifier: Apache-2.0
// What every NvmeIo must do where a transfer stops early, fails, or the engine ends. A part of
// nvme_io_conformance.h.
#pragma once
#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <string>

#include "tests/conformance/nvme_io_fixture.h"

namespace gemini::server {

TEST_P(NvmeIoConformance, AnExtentThatEndsEarlyIsDataLoss) {
  ASSERT_EQ(::ftruncate(file_.get(), 3 * kChunk + 5000), 0);
  EXPECT_THAT(Run(Transfer(IoOperation::kRead, 0, 3)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_OK(Run(Transfer(IoOperation::kRead, 0, 2)));
}

TEST_P(NvmeIoConformance, ALongTransferPastTheEndIsDataLossOnce) {
  constexpr int64_t kLong = 3 * kMiB;
  const MappedSlab slab(kLong);
  ASSERT_EQ(::ftruncate(file_.get(), kMiB + 3 * kPageBytes + 100), 0);
  EXPECT_THAT(Run({IoOperation::kRead, slab.fd.get(), 0, nvme_.get(), 0, kLong}),
              StatusIs(absl::StatusCode::kDataLoss));
}

// Each of the kernel's answers is a page: that is how it reads out its own files.
TEST_P(NvmeIoConformance, AShortReadGoesOnWhereItStopped) {
  const UniqueFd kernel_types(::open("/sys/kernel/btf/vmlinux", O_RDONLY | O_CLOEXEC));
  if (!kernel_types) GTEST_SKIP() << "this kernel has no file of types";
  constexpr int64_t kRead = kMiB + 5 * kPageBytes;
  std::string expected(kRead, '\0');
  ASSERT_EQ(::pread(kernel_types.get(), expected.data(), kRead, kPageBytes), kPageBytes)
      << "it is no source of short reads any more";
  for (int64_t at = kPageBytes; at < kRead; at += kPageBytes) {
    ASSERT_EQ(::pread(kernel_types.get(), expected.data() + at, kPageBytes, kPageBytes + at),
              kPageBytes);
  }
  const MappedSlab slab(2 * kMiB);
  ASSERT_OK(
      Run({IoOperation::kRead, slab.fd.get(), kPageBytes, kernel_types.get(), kPageBytes, kRead}));
  EXPECT_EQ(std::memcmp(slab.memory.data() + kPageBytes, expected.data(), kRead), 0);
  EXPECT_EQ(slab.words()[(kPageBytes + kRead) / 8], 0u);
}

TEST_P(NvmeIoConformance, AFullDiskIsAStatus) {
  const UniqueFd full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  NvmeTransfer transfer = Transfer(IoOperation::kWrite, 0, 0);
  transfer.nvme_fd = full.get();
  EXPECT_THAT(Run(transfer), StatusIs(absl::StatusCode::kResourceExhausted));
  const MappedSlab slab(3 * kMiB);  // Each of its pieces fails; it is reported once.
  EXPECT_THAT(Run({IoOperation::kWrite, slab.fd.get(), 0, full.get(), 0, 3 * kMiB}),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

// The kernel writes up to the limit and says so: the rest is asked for again, and refused.
TEST_P(NvmeIoConformance, AShortWriteGoesOnWhereItStopped) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  FillHost(0, 'y');
  rlimit limit = before;
  limit.rlim_cur = kChunk + kChunk / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = Run(Transfer(IoOperation::kWrite, 0, 1));
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Chunk(file_.get(), 1), std::string(kChunk / 2, 'y') + std::string(kChunk / 2, '\0'));
}

TEST_P(NvmeIoConformance, AnEndWaitsForWhatIsInFlight) {
  std::atomic<int> done = 0;
  for (int i = 0; i < 100; ++i) {
    io_->Submit(Transfer(IoOperation::kWrite, 0, i % kChunks),
                [&](const absl::Status&) { ++done; });
  }
  io_.reset();
  EXPECT_EQ(done, 100);
}

TEST_P(NvmeIoConformance, AnEndDropsWhatHasNotBegun) {
  std::atomic<int> moved = 0;
  std::atomic<int> aborted = 0;
  std::atomic<int> reported = 0;
  std::latch first(1);
  // Each report waits for it, so that not all can be done before all are queued.
  std::latch all_queued(1);
  for (int i = 0; i < 1000; ++i) {
    io_->Submit(Transfer(IoOperation::kWrite, 0, i % kChunks), [&](const absl::Status& status) {
      all_queued.wait();
      (status.ok() ? moved : aborted) += 1;
      EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
      if (reported++ == 0) first.count_down();
    });
  }
  all_queued.count_down();
  first.wait();
  io_.reset();
  EXPECT_EQ(moved + aborted, 1000);
  EXPECT_GT(moved, 0);
  EXPECT_GT(aborted, 0);
}

}  // namespace gemini::server
