// SPDX-License-Identifier: Apache-2.0
#include "client/device/range_read.h"

#include <algorithm>
#include <string>
#include <vector>

#include "client/device/residency.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr ChunkKind kParam = ChunkKind::kParam;

// DEVICE has one slot; each of four parameters is committed with its number as tag.
class RangeReadTest : public SessionFixture {
 protected:
  void SetUp() override {
    OpenSession(/*device_slots=*/1, /*host_slots=*/8, 0);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("space", 4, 8, 0);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < 4; ++i) ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
  }
  Residency& residency() { return session_->residency(); }
  RangeId Range(int64_t first, int64_t num_bundles = 1) {
    return residency().AddRange(*store_, BundleId(first), num_bundles, kParam);
  }
  absl::Status Read(RangeId range, int64_t offset_bytes, absl::Span<std::byte> to) {
    const absl::StatusOr<CopyEvent> read = BeginRead(residency().tier(), range, offset_bytes,
                                                     to.data(), static_cast<int64_t>(to.size()));
    if (read.ok()) AwaitRead(residency().tier(), range, *read);
    return read.status();
  }

  ChunkStore* store_ = nullptr;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(2 * kTestChunkBytes);
};

TEST_F(RangeReadTest, BringsTheBytesAndNotTheRange) {
  const RangeId two = Range(2, 2);  // It has no room on DEVICE.
  ASSERT_OK(Read(two, 0, absl::MakeSpan(bytes_)));
  EXPECT_TRUE(ChunkHolds(bytes_.data(), 2));
  EXPECT_TRUE(ChunkHolds(bytes_.data() + kTestChunkBytes, 3));
  EXPECT_EQ(residency().DeviceSlot(two), kNoSlot);
  EXPECT_EQ(residency().stats().fetch_bytes, 2 * kTestChunkBytes);
  // A part that is in both of its chunks.
  std::vector<std::byte> part(64);
  ASSERT_OK(Read(two, kTestChunkBytes - 32, absl::MakeSpan(part)));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes_.begin() + kTestChunkBytes - 32));
  EXPECT_EQ(residency().stats().fetch_bytes, 2 * kTestChunkBytes + 64);
}

TEST_F(RangeReadTest, FindsTheNewestBytesOfARangeThatIsOnDevice) {
  const RangeId range = Range(0);
  std::byte* address = nullptr;
  ASSERT_OK(residency().Pin({&range, 1}, {&address, 1}));
  FillChunk(address, 77);
  residency().Unpin(range, /*dirty=*/true);
  ASSERT_OK(Read(range, 0, absl::MakeSpan(bytes_).first(kTestChunkBytes)));
  EXPECT_TRUE(ChunkHolds(bytes_.data(), 77));
  EXPECT_NE(residency().DeviceSlot(range), kNoSlot);
}

TEST_F(RangeReadTest, RefusesWhatIsNoPartOfTheRange) {
  for (const int64_t offset : {int64_t{-1}, int64_t{1}}) {
    EXPECT_THAT(Read(Range(1), offset, absl::MakeSpan(bytes_).first(kTestChunkBytes)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("a read of 4096 bytes at " + std::to_string(offset))));
  }
}

}  // namespace
}  // namespace gemini::client
