// SPDX-License-Identifier: Apache-2.0
#include "client/device/pending_write.h"

#include <optional>

#include "client/copy/copy_engine_host.h"
#include "client/device/residency.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr ChunkKind kGrad = ChunkKind::kGrad;

// The evict stream is held, and has much to copy once it goes on, so that whoever does not wait for
// the write overtakes it.
class PendingWriteTest : public SessionFixture {
 protected:
  void OpenLarge() {
    chunk_bytes_ = 1 << 20;
    OpenSession(/*device_slots=*/1, /*host_slots=*/6, 0);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("space", /*num_bundles=*/2, /*host_slots=*/6, 0);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < 2; ++i) ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
    bytes_.resize(chunk_bytes_);
    arena_.resize(chunk_bytes_);
    ballast_copy_.resize(ballast_.size());
    own_.emplace(own_budget_, copies_, arena_.data(), /*num_slots=*/1, chunk_bytes_);
  }
  // Until LetEvictStreamGo, which enqueues the fetch that it waits for.
  void HoldEvictStream() {
    CopyEvent next = Fetch();
    ++next.sequences[static_cast<size_t>(CopyStream::kFetch)];
    copies_.Copy(CopyStream::kEvict, ballast_copy_.data(), ballast_.data(), ballast_.size(), next);
  }
  void LetEvictStreamGo() { Fetch(); }
  CopyEvent Fetch() { return copies_.Copy(CopyStream::kFetch, &fetched_, ballast_.data(), 1, {}); }
  // Pins, compares with the tag and unpins.
  bool Holds(RangeId range, uint64_t tag) {
    std::byte* address = nullptr;
    EXPECT_OK(own_->Pin({&range, 1}, {&address, 1}));
    const bool holds = ChunkHolds(address, tag, chunk_bytes_);
    own_->Unpin(range, /*dirty=*/false);
    return holds;
  }

  ChunkStore* store_ = nullptr;
  const std::vector<std::byte> ballast_ = std::vector<std::byte>(64 << 20);
  std::vector<std::byte> ballast_copy_, bytes_, arena_;
  std::byte fetched_{};
  DeviceBudget own_budget_{1 << 20};
  CopyEngineHost copies_;
  std::optional<Residency> own_;
};

TEST_F(PendingWriteTest, APinComesAfterAWriteThatIsUnderWay) {
  OpenLarge();
  if (HasFatalFailure()) return;
  const RangeId grad = own_->AddRange(*store_, BundleId(0), 1, kGrad);
  for (const uint64_t tag : {5, 6, 7}) {  // Into HOST, then twice into its DEVICE copy: no link.
    FillChunk(bytes_.data(), tag, chunk_bytes_);
    HoldEvictStream();
    absl::StatusOr<PendingWrite> write = own_->BeginWrite(grad, 0, bytes_.data(), chunk_bytes_);
    const bool done = write.ok() && write->Done();
    LetEvictStreamGo();
    ASSERT_OK(write.status());
    EXPECT_EQ(done, tag != 5);
    EXPECT_TRUE(Holds(grad, tag));
    EXPECT_TRUE(write->Done());
  }
  EXPECT_EQ(own_->stats().fetch_bytes, chunk_bytes_);
}

TEST_F(PendingWriteTest, AWriteIntoTheDeviceCopyGoesWhereThatGoes) {
  OpenLarge();
  if (HasFatalFailure()) return;
  const RangeId grad = own_->AddRange(*store_, BundleId(0), 1, kGrad);
  const RangeId param = own_->AddRange(*store_, BundleId(1), 1, kParam);
  FillChunk(bytes_.data(), 5, chunk_bytes_);
  ASSERT_OK(own_->Write(grad, 0, bytes_.data(), chunk_bytes_));
  ASSERT_TRUE(Holds(grad, 5));
  FillChunk(bytes_.data(), 6, chunk_bytes_);
  ASSERT_OK(own_->Write(grad, 0, bytes_.data(), chunk_bytes_));
  ASSERT_OK(own_->Drop(grad));
  EXPECT_TRUE(Holds(param, 1));
  EXPECT_TRUE(Holds(grad, 5));  // The write is gone with the DEVICE copy, as asked.
  FillChunk(bytes_.data(), 7, chunk_bytes_);
  ASSERT_OK(own_->Write(grad, 0, bytes_.data(), chunk_bytes_));
  EXPECT_TRUE(Holds(param, 1));  // The other way to leave: written back.
  EXPECT_TRUE(Holds(grad, 7));
}

}  // namespace
}  // namespace gemini::client
