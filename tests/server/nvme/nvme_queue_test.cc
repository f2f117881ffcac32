// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_queue.h"

#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

class NvmeQueueTest : public ::testing::Test {
 protected:
  void Push(uint64_t tenant, int64_t size_bytes, uint64_t space = 0, int64_t host_offset = 0) {
    queue_.Push({.host_offset_bytes = host_offset,
                 .size_bytes = size_bytes,
                 .tenant = tenant,
                 .space = space},
                [](const absl::Status&) {});
  }
  // Pieces of each tenant, by bytes, of the next `count`.
  std::map<uint64_t, int64_t> Take(int count) {
    std::map<uint64_t, int64_t> bytes;
    for (int i = 0; i < count; ++i) {
      std::optional<NvmeQueue::Piece> piece = queue_.Next();
      if (!piece.has_value()) break;
      bytes[piece->of->transfer.tenant] += piece->size_bytes;
      (void)queue_.Finish(*piece, absl::OkStatus());
    }
    return bytes;
  }
  NvmeQueue queue_;
};

TEST_F(NvmeQueueTest, TenantsHaveEqualBytesHoweverMuchEachHasQueuedAndInWhatSizes) {
  for (int i = 0; i < 100; ++i) Push(1, 64 * kMiB);
  for (int i = 0; i < 10'000; ++i) Push(2, 64 * kKiB);
  for (int i = 0; i < 1'000; ++i) Push(3, 3 * kMiB);
  const std::map<uint64_t, int64_t> bytes = Take(5'000);
  for (uint64_t tenant : {2, 3}) {
    EXPECT_NEAR(static_cast<double>(bytes.at(tenant)) / static_cast<double>(bytes.at(1)), 1, 0.03);
  }
}

TEST_F(NvmeQueueTest, WhoComesLastHasItsTurnAfterOnePieceOfEachOther) {
  for (uint64_t tenant = 1; tenant <= 5; ++tenant) {
    for (int i = 0; i < 100; ++i) Push(tenant, 64 * kMiB);
  }
  Take(57);
  Push(6, 64 * kKiB);
  EXPECT_EQ(Take(6)[6], 64 * kKiB);
}

TEST_F(NvmeQueueTest, PiecesCoverATransferOnceAndLieBetweenMultiplesOfTheirSize) {
  std::mt19937_64 random(/*seed=*/5);
  for (int i = 0; i < 1000; ++i) {
    const int64_t offset = static_cast<int64_t>(random() % 4096) * 4096;
    const int64_t size = static_cast<int64_t>(random() % 9000 + 1) * 4096;
    Push(1, size, 0, offset);
    int64_t covered = 0;
    while (std::optional<NvmeQueue::Piece> piece = queue_.Next()) {
      EXPECT_EQ(piece->begin_bytes, covered);
      const int64_t begin = offset + covered;
      covered += piece->size_bytes;
      EXPECT_EQ(begin / kNvmePieceBytes, (offset + covered - 1) / kNvmePieceBytes);
      EXPECT_EQ(queue_.Finish(*piece, absl::OkStatus()).has_value(), covered == size);
    }
    EXPECT_EQ(covered, size);
  }
}

TEST_F(NvmeQueueTest, AfterAFailureNoPieceBeginsAndTheFirstStatusIsReportedOnce) {
  Push(1, 64 * kMiB);
  Push(1, kMiB);
  const std::optional<NvmeQueue::Piece> first = queue_.Next();
  const std::optional<NvmeQueue::Piece> second = queue_.Next();
  EXPECT_FALSE(queue_.Finish(*second, absl::DataLossError("second")).has_value());
  const std::optional<NvmeQueue::Piece> next = queue_.Next();
  EXPECT_EQ(next->of->transfer.size_bytes, kMiB);
  const auto ended = queue_.Finish(*first, absl::DataLossError("first"));
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->status.message(), "second");
  EXPECT_TRUE(queue_.empty());
  EXPECT_OK(queue_.Finish(*next, absl::OkStatus())->status);
}

TEST_F(NvmeQueueTest, ACancelledSpaceEndsWithItsPiecesUnderWay) {
  Push(1, 64 * kMiB, /*space=*/10);
  Push(1, 64 * kMiB, 11);
  Push(1, 64 * kMiB, 10);
  Push(2, 64 * kMiB, 10);
  const std::optional<NvmeQueue::Piece> begun = queue_.Next();
  const std::vector<NvmeQueue::Ended> ended = queue_.Cancel(1, 10);
  ASSERT_EQ(ended.size(), 1u);  // The second; the first has a piece under way.
  EXPECT_TRUE(absl::IsAborted(ended[0].status));
  const auto last = queue_.Finish(*begun, absl::OkStatus());
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(absl::IsAborted(last->status));
  EXPECT_TRUE(queue_.Cancel(1, 10).empty());
  const std::map<uint64_t, int64_t> bytes = Take(1000);
  EXPECT_EQ(bytes, (std::map<uint64_t, int64_t>{{1, 64 * kMiB}, {2, 64 * kMiB}}));
}

}  // namespace
}  // namespace gemini::server
