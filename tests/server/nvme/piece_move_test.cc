// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/piece_move.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "gemini/layout.h"
#include "gemini/system/unique_fd.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPieceBytes = 4 * kPageBytes;

// A slab and an extent of three pieces each.
class PieceMoveTest : public ::testing::Test {
 protected:
  PieceMoveTest()
      : slab_(::memfd_create("slab", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
        extent_(::memfd_create("extent", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(slab_.get(), 3 * kPieceBytes), 0);
    EXPECT_EQ(::ftruncate(extent_.get(), 3 * kPieceBytes), 0);
  }
  static void Fill(const UniqueFd& fd, char byte) {
    const std::string bytes(3 * kPieceBytes, byte);
    ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), 3 * kPieceBytes);
  }
  static std::string Read(const UniqueFd& fd) {
    std::string bytes(3 * kPieceBytes, '\0');
    EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), 3 * kPieceBytes);
    return bytes;
  }
  // The second piece of a transfer whose first is elsewhere: each side has an offset of its own.
  NvmeQueue::Piece Second(IoOperation operation, int64_t nvme_offset_bytes = 0) const {
    auto moving = std::make_shared<NvmeQueue::Moving>();
    moving->transfer = {.operation = operation,
                        .host_fd = slab_.get(),
                        .host_offset_bytes = kPieceBytes,
                        .nvme_fd = extent_.get(),
                        .nvme_offset_bytes = nvme_offset_bytes,
                        .size_bytes = 2 * kPieceBytes};
    return {.of = std::move(moving), .begin_bytes = kPieceBytes, .size_bytes = kPieceBytes};
  }

  UniqueFd slab_, extent_;
};

TEST_F(PieceMoveTest, WritesAndReadsThePieceAndNothingBesideIt) {
  Fill(slab_, 's');
  Fill(extent_, 'e');
  ASSERT_OK(MovePiece(Second(IoOperation::kWrite)));
  const std::string e(kPieceBytes, 'e'), s(kPieceBytes, 's');
  EXPECT_EQ(Read(extent_), e + s + e);
  Fill(extent_, 'n');
  ASSERT_OK(MovePiece(Second(IoOperation::kRead)));
  EXPECT_EQ(Read(slab_), s + s + std::string(kPieceBytes, 'n'));
}

TEST_F(PieceMoveTest, AnExtentThatEndsEarlyIsDataLoss) {
  EXPECT_THAT(MovePiece(Second(IoOperation::kRead, /*nvme_offset_bytes=*/2 * kPieceBytes)),
              StatusIs(absl::StatusCode::kDataLoss));
}

// A slab is sealed, so nobody makes it longer.
TEST_F(PieceMoveTest, ASlabThatEndsEarlyIsAnError) {
  ASSERT_EQ(::ftruncate(slab_.get(), kPieceBytes), 0);
  ASSERT_EQ(::fcntl(slab_.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_THAT(MovePiece(Second(IoOperation::kWrite)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(MovePiece(Second(IoOperation::kRead)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("slab")));
}

TEST_F(PieceMoveTest, APageThatTheClientGaveBackIsWrittenAsZeros) {
  Fill(slab_, 's');
  Fill(extent_, 'e');
  ASSERT_EQ(::fallocate(slab_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * kPieceBytes,
                        kPieceBytes),
            0);
  ASSERT_OK(MovePiece(Second(IoOperation::kWrite)));
  const std::string e(kPieceBytes, 'e');
  EXPECT_EQ(Read(extent_), e + std::string(kPieceBytes, '\0') + e);
}

}  // namespace
}  // namespace gemini::server
