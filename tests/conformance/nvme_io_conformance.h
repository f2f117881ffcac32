// SPDX-License-Identifier: Apache-2.0
// What every NvmeIo must do; an implementation joins with one INSTANTIATE_TEST_SUITE_P.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gemini/byte_size.h"
#include "server/nvme_io.h"
#include "server/sealed_memfd.h"
#include "tests/status_matchers.h"

namespace gemini::server {

using NvmeIoMaker = std::function<std::unique_ptr<NvmeIo>()>;

class NvmeIoConformance : public ::testing::TestWithParam<NvmeIoMaker> {
 protected:
  static constexpr int64_t kChunk = 256 * kKiB;
  static constexpr int64_t kChunks = 16;

  void SetUp() override {
    ::signal(SIGXFSZ, SIG_IGN);  // As geminid does.
    ASSERT_OK_AND_ASSIGN(host_, MakeSealedMemfd("host", kChunks * kChunk, MemfdPages::kAllocated));
    std::string name = ::testing::TempDir() + "/extent-XXXXXX";
    nvme_ = UniqueFd(::mkstemp(name.data()));
    ASSERT_TRUE(nvme_);
    ::unlink(name.c_str());
    ASSERT_EQ(::posix_fallocate(nvme_.get(), 0, kChunks * kChunk), 0);
    io_ = GetParam()();
  }

  NvmeTransfer Transfer(IoOperation operation, int64_t host_chunk, int64_t nvme_chunk) const {
    return {operation, host_.get(), host_chunk * kChunk, nvme_.get(), nvme_chunk * kChunk, kChunk};
  }
  absl::Status Run(const NvmeTransfer& transfer) {
    std::latch done(1);
    absl::Status result;
    io_->Submit(transfer, [&](const absl::Status& status) {
      result = status;
      done.count_down();
    });
    done.wait();
    return result;
  }
  void FillHost(int64_t chunk, char value) const {
    const std::string bytes(kChunk, value);
    ASSERT_EQ(::pwrite(host_.get(), bytes.data(), kChunk, chunk * kChunk), kChunk);
  }
  static std::string Chunk(int fd, int64_t chunk) {
    std::string bytes(kChunk, '\0');
    EXPECT_EQ(::pread(fd, bytes.data(), kChunk, chunk * kChunk), kChunk);
    return bytes;
  }

  UniqueFd host_;
  UniqueFd nvme_;
  std::unique_ptr<NvmeIo> io_;
};

TEST_P(NvmeIoConformance, AChunkGoesOutAndComesBackToAnotherSlotAlone) {
  FillHost(2, 'x');
  ASSERT_OK(Run(Transfer(IoOperation::kWrite, 2, 9)));
  EXPECT_EQ(Chunk(nvme_.get(), 9), std::string(kChunk, 'x'));
  EXPECT_EQ(Chunk(nvme_.get(), 8), std::string(kChunk, '\0'));
  EXPECT_EQ(Chunk(nvme_.get(), 10), std::string(kChunk, '\0'));
  ASSERT_OK(Run(Transfer(IoOperation::kRead, 5, 9)));
  EXPECT_EQ(Chunk(host_.get(), 5), std::string(kChunk, 'x'));
  EXPECT_EQ(Chunk(host_.get(), 4), std::string(kChunk, '\0'));
  EXPECT_EQ(Chunk(host_.get(), 6), std::string(kChunk, '\0'));
}

TEST_P(NvmeIoConformance, EachOfManyTransfersReportsOnce) {
  constexpr int kTransfers = 200;
  for (int i = 0; i < kChunks; ++i) FillHost(i, static_cast<char>('a' + i));
  std::latch left(kTransfers);
  std::atomic<int> reported = 0;
  std::atomic<int> failed = 0;
  for (int i = 0; i < kTransfers; ++i) {
    io_->Submit(Transfer(IoOperation::kWrite, i % kChunks, i % kChunks),
                [&](const absl::Status& status) {
                  failed += status.ok() ? 0 : 1;
                  if (reported++ < kTransfers) left.count_down();
                });
  }
  left.wait();
  io_.reset();
  EXPECT_EQ(reported, kTransfers);
  EXPECT_EQ(failed, 0);
  for (int i = 0; i < kChunks; ++i) {
    EXPECT_EQ(Chunk(nvme_.get(), i), std::string(kChunk, static_cast<char>('a' + i)));
  }
}

TEST_P(NvmeIoConformance, AnExtentThatEndsEarlyIsDataLoss) {
  ASSERT_EQ(::ftruncate(nvme_.get(), 3 * kChunk + 5000), 0);
  EXPECT_THAT(Run(Transfer(IoOperation::kRead, 0, 3)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_OK(Run(Transfer(IoOperation::kRead, 0, 2)));
}

TEST_P(NvmeIoConformance, AFullDiskIsAStatus) {
  const UniqueFd full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  NvmeTransfer transfer = Transfer(IoOperation::kWrite, 0, 0);
  transfer.nvme_fd = full.get();
  EXPECT_THAT(Run(transfer), StatusIs(absl::StatusCode::kResourceExhausted));
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
  EXPECT_EQ(Chunk(nvme_.get(), 1), std::string(kChunk / 2, 'y') + std::string(kChunk / 2, '\0'));
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
  for (int i = 0; i < 1000; ++i) {
    io_->Submit(Transfer(IoOperation::kWrite, 0, i % kChunks), [&](const absl::Status& status) {
      (status.ok() ? moved : aborted) += 1;
      EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
      if (reported++ == 0) first.count_down();
    });
  }
  first.wait();
  io_.reset();
  EXPECT_EQ(moved + aborted, 1000);
  EXPECT_GT(moved, 0);
  EXPECT_GT(aborted, 0);
}

}  // namespace gemini::server
