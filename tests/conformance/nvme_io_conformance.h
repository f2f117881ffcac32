// SPDX-License-Identifier: Apache-2.0
// What every NvmeIo must do; an implementation joins with one INSTANTIATE_TEST_SUITE_P.
#pragma once
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <latch>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/nvme_io_ends_conformance.h"
#include "tests/conformance/nvme_io_fixture.h"
#include "tests/conformance/nvme_io_turns_conformance.h"

namespace gemini::server {

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

}  // namespace gemini::server
