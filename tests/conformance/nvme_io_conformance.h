// SPDX-License-Identifier: Apache-2.0
// What every NvmeIo must do; an implementation joins with one INSTANTIATE_TEST_SUITE_P.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/mapped_memory.h"
#include "server/nvme_io.h"
#include "server/sealed_memfd.h"
#include "tests/status_matchers.h"

namespace gemini::server {

struct NvmeIoCase {
  std::string name;
  std::function<std::unique_ptr<NvmeIo>()> make;
  bool direct = false;  // The extent is open with O_DIRECT.
  friend void PrintTo(const NvmeIoCase& tested, std::ostream* out) { *out << tested.name; }
};

class NvmeIoConformance : public ::testing::TestWithParam<NvmeIoCase> {
 protected:
  static constexpr int64_t kChunk = 256 * kKiB;
  static constexpr int64_t kChunks = 16;

  void SetUp() override {
    ::signal(SIGXFSZ, SIG_IGN);  // As geminid does.
    ASSERT_OK_AND_ASSIGN(host_, MakeSealedMemfd("host", kChunks * kChunk, MemfdPages::kAllocated));
    std::string name = ::testing::TempDir() + "/extent-XXXXXX";
    file_ = UniqueFd(::mkstemp(name.data()));
    ASSERT_TRUE(file_);
    const int direct = GetParam().direct ? O_DIRECT : 0;
    nvme_ = UniqueFd(::open(name.c_str(), O_RDWR | O_CLOEXEC | direct));
    ASSERT_TRUE(nvme_) << "no O_DIRECT in " << ::testing::TempDir();
    ::unlink(name.c_str());
    ASSERT_EQ(::posix_fallocate(file_.get(), 0, kChunks * kChunk), 0);
    io_ = GetParam().make();
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

  void Forget(int host_fd) {
    std::latch forgotten(1);
    io_->Forget({host_fd}, [&] { forgotten.count_down(); });
    forgotten.wait();
  }

  UniqueFd host_;
  UniqueFd file_;  // What nvme_ is, for the test itself: through the page cache.
  UniqueFd nvme_;
  std::unique_ptr<NvmeIo> io_;
};

// A slab that a test looks into, longer than what an engine may take as one piece.
struct MappedSlab {
  explicit MappedSlab(int64_t size_bytes)
      : fd(*MakeSealedMemfd("slab", size_bytes, MemfdPages::kAllocated)),
        memory(*MappedMemory::Map(fd.get(), size_bytes, MappedMemory::Access::kReadWrite)) {}
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(memory.data()); }
  UniqueFd fd;
  MappedMemory memory;
};

TEST_P(NvmeIoConformance, AChunkGoesOutAndComesBackToAnotherSlotAlone) {
  FillHost(2, 'x');
  ASSERT_OK(Run(Transfer(IoOperation::kWrite, 2, 9)));
  EXPECT_EQ(Chunk(file_.get(), 9), std::string(kChunk, 'x'));
  EXPECT_EQ(Chunk(file_.get(), 8), std::string(kChunk, '\0'));
  EXPECT_EQ(Chunk(file_.get(), 10), std::string(kChunk, '\0'));
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
    EXPECT_EQ(Chunk(file_.get(), i), std::string(kChunk, static_cast<char>('a' + i)));
  }
}

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

// A piece that an engine may cut ends anywhere; what lies around stays as it was.
TEST_P(NvmeIoConformance, BytesAreExactAtAllOffsets) {
  constexpr int64_t kRoom = 20 * kMiB;
  const MappedSlab source(kRoom), target(kRoom);
  ASSERT_EQ(::posix_fallocate(file_.get(), 0, kRoom), 0);
  for (int64_t i = 0; i < kRoom / 8; ++i) source.words()[i] = i * 0x9e3779b97f4a7c15;
  struct Case {
    int64_t source_page, nvme_page, target_page, pages;
  };
  for (const Case& at : {Case{0, 0, 0, 1}, Case{255, 3, 1, 2}, Case{1, 256, 255, 256},
                         Case{7, 11, 13, 1031}, Case{4000, 64, 4094, 5}, Case{3, 5, 250, 4100}}) {
    std::memset(target.memory.data(), 0, kRoom);
    const int64_t size = at.pages * kPageBytes;
    ASSERT_OK(Run({IoOperation::kWrite, source.fd.get(), at.source_page * kPageBytes, nvme_.get(),
                   at.nvme_page * kPageBytes, size}));
    ASSERT_OK(Run({IoOperation::kRead, target.fd.get(), at.target_page * kPageBytes, nvme_.get(),
                   at.nvme_page * kPageBytes, size}));
    const std::byte* const arrived = target.memory.data() + at.target_page * kPageBytes;
    EXPECT_EQ(std::memcmp(arrived, source.memory.data() + at.source_page * kPageBytes, size), 0)
        << at.pages << " pages from " << at.source_page;
    if (at.target_page > 0) {
      EXPECT_EQ(arrived[-1], std::byte{0});
    }
    EXPECT_EQ(arrived[size], std::byte{0});
  }
}

TEST_P(NvmeIoConformance, ManyMoreTransfersThanAQueueHoldsMayComeInAnyOrder) {
  constexpr int64_t kSlots = 2000;
  const MappedSlab slab(kSlots * kPageBytes);
  ASSERT_EQ(::posix_fallocate(file_.get(), 0, kSlots * kPageBytes), 0);
  const auto word = [&](int64_t slot) -> uint64_t& {
    return slab.words()[slot * kPageBytes / 8 + slot % 512];
  };
  for (int64_t slot = 0; slot < kSlots; ++slot) word(slot) = slot + 1;
  std::vector<int64_t> order(kSlots);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(/*seed=*/3);
  for (const IoOperation operation : {IoOperation::kWrite, IoOperation::kRead}) {
    std::shuffle(order.begin(), order.end(), random);
    std::latch left(kSlots);
    std::atomic<int> failed = 0;
    for (const int64_t slot : order) {
      io_->Submit({operation, slab.fd.get(), slot * kPageBytes, nvme_.get(),
                   (kSlots - 1 - slot) * kPageBytes, kPageBytes},
                  [&](const absl::Status& status) {
                    failed += status.ok() ? 0 : 1;
                    left.count_down();
                  });
    }
    left.wait();
    EXPECT_EQ(failed, 0);
    if (operation == IoOperation::kWrite) {
      std::memset(slab.memory.data(), 0, slab.memory.size_bytes());
    }
  }
  for (int64_t slot = 0; slot < kSlots; ++slot) ASSERT_EQ(word(slot), slot + 1u) << slot;
}

// Another slab under the same descriptor: a dead client's is closed, and the next one's opened.
TEST_P(NvmeIoConformance, AForgottenSlabIsNotTouchedAgain) {
  FillHost(0, 'o');
  ASSERT_OK(Run(Transfer(IoOperation::kWrite, 0, 0)));
  ASSERT_OK(Run(Transfer(IoOperation::kRead, 1, 0)));
  Forget(host_.get());
  const UniqueFd old(::dup(host_.get()));
  ASSERT_OK_AND_ASSIGN(const UniqueFd next,
                       MakeSealedMemfd("next", kChunks * kChunk, MemfdPages::kAllocated));
  ASSERT_EQ(::dup3(next.get(), host_.get(), O_CLOEXEC), host_.get());
  FillHost(0, 'n');
  ASSERT_OK(Run(Transfer(IoOperation::kWrite, 0, 3)));
  EXPECT_EQ(Chunk(file_.get(), 3), std::string(kChunk, 'n'));
  ASSERT_OK(Run(Transfer(IoOperation::kRead, 2, 3)));
  EXPECT_EQ(Chunk(next.get(), 2), std::string(kChunk, 'n'));
  EXPECT_EQ(Chunk(old.get(), 2), std::string(kChunk, '\0'));
}

TEST_P(NvmeIoConformance, ForgettingWhatWasNeverUsedIsCalledBackToo) {
  Forget(host_.get());
  io_->Forget({}, [] {});
  ASSERT_OK(Run(Transfer(IoOperation::kRead, 0, 0)));
  std::atomic<int> forgotten = 0;
  io_->Forget({host_.get(), file_.get()}, [&] { ++forgotten; });
  io_.reset();
  EXPECT_EQ(forgotten, 1);
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
