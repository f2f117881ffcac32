// SPDX-License-Identifier: Apache-2.0
// Ranges of chunks whose payload is less than a chunk: on DEVICE they are one run without gaps.
#include <cstring>
#include <vector>

#include "client/device/residency.h"
#include "gemini/state_format.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr int64_t kChunkBytes = 2 * kPageBytes;
constexpr int64_t kPayloadBytes = kPageBytes;  // Of moments in 8 bits, and one block.
constexpr int64_t kSpanning = 5;

class ResidencyPayloadTest : public SessionFixture {
 protected:
  // A tensor of five chunks, and one of one chunk behind it, in a space of as many HOST slots.
  void SetUp() override {
    chunk_bytes_ = kChunkBytes;
    OpenSession(/*device_slots=*/kSpanning, /*host_slots=*/40, /*nvme_slots=*/0);
    if (HasFatalFailure()) return;
    auto store = session_->OpenSpace(
        {.name = "space",
         .num_bundles = kSpanning + 1,
         .host_slots = 40,
         .nvme_slots = 0,
         .format = {.element = ElementType::kBf16, .moments = MomentFormat::k8Bit}});
    ASSERT_OK(store);
    store_ = *store;
    ASSERT_EQ(store_->memory().shape().payload_bytes(), kPayloadBytes);
    for (int64_t i = 0; i <= kSpanning; ++i) {
      ASSERT_OK_AND_ASSIGN(HostChunk chunk, store_->AcquireSpare());
      FillChunk(chunk.data(), static_cast<uint64_t>(i), kChunkBytes);
      std::vector<std::pair<ChunkKind, HostChunk>> fresh;
      fresh.emplace_back(ChunkKind::kParam, std::move(chunk));
      ASSERT_OK(store_->Commit(BundleId(i), 0, absl::MakeSpan(fresh)));
    }
    spanning_ = residency().AddRange(*store_, BundleId(0), kSpanning, ChunkKind::kParam);
    other_ = residency().AddRange(*store_, BundleId(kSpanning), 1, ChunkKind::kParam);
  }
  Residency& residency() { return session_->residency(); }
  std::byte* Pin(RangeId range) {
    std::byte* address = nullptr;
    EXPECT_OK(residency().Pin({&range, 1}, {&address, 1}));
    return address;
  }
  void ExpectTags(uint64_t first_tag) {
    std::byte* const bytes = Pin(spanning_);
    ASSERT_NE(bytes, nullptr);
    for (int64_t i = 0; i < kSpanning; ++i) {
      EXPECT_TRUE(ChunkHolds(bytes + i * kPayloadBytes, first_tag + i, kPayloadBytes)) << i;
    }
    residency().Unpin(spanning_, /*dirty=*/false);
  }

  ChunkStore* store_ = nullptr;
  RangeId spanning_, other_;
};

TEST_F(ResidencyPayloadTest, PayloadsAreAdjacentOnDeviceAndComeBackToTheirChunks) {
  ExpectTags(0);
  std::byte* const bytes = Pin(spanning_);
  for (int64_t i = 0; i < kSpanning; ++i) {
    FillChunk(bytes + i * kPayloadBytes, 100 + i, kPayloadBytes);
  }
  residency().Unpin(spanning_, /*dirty=*/true);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(ChunkHolds(Pin(other_), kSpanning, kPayloadBytes));  // The other leaves for it.
    residency().Unpin(other_, /*dirty=*/false);
    ExpectTags(100);
  }
  for (int64_t i = 0; i < kSpanning; ++i) {
    ASSERT_OK_AND_ASSIGN(const HostChunk host,
                         store_->Acquire(ChunkOf(BundleId(i), ChunkKind::kParam)));
    EXPECT_TRUE(ChunkHolds(host.data(), 100 + i, kPayloadBytes)) << i;
  }
  EXPECT_EQ(residency().stats().evict_bytes, kSpanning * kPayloadBytes);
}

// A gradient that is written to HOST piece by piece, and then read on DEVICE as one run.
TEST_F(ResidencyPayloadTest, AWriteToHostGoesToThePayloadsOfItsChunks) {
  const RangeId grad = residency().AddRange(*store_, BundleId(0), kSpanning, ChunkKind::kGrad);
  std::vector<std::byte> values(kSpanning * kPayloadBytes);
  for (int64_t i = 0; i < kSpanning; ++i) {
    FillChunk(&values[i * kPayloadBytes], 200 + i, kPayloadBytes);
  }
  constexpr int64_t kCut = kPayloadBytes + 512;
  ASSERT_OK(residency().Write(grad, 0, values.data(), kCut));
  EXPECT_THAT(residency().Write(grad, kCut, values.data(), static_cast<int64_t>(values.size())),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(
      residency().Write(grad, kCut, &values[kCut], static_cast<int64_t>(values.size()) - kCut));
  for (int64_t i = 0; i < kSpanning; ++i) {
    ASSERT_OK_AND_ASSIGN(const HostChunk host,
                         store_->Acquire(ChunkOf(BundleId(i), ChunkKind::kGrad)));
    EXPECT_TRUE(ChunkHolds(host.data(), 200 + i, kPayloadBytes)) << i;
  }
  const std::byte* const bytes = Pin(grad);
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(std::memcmp(bytes, values.data(), values.size()), 0);
  residency().Unpin(grad, /*dirty=*/false);
}

}  // namespace
}  // namespace gemini::client
