// SPDX-License-Identifier: Apache-2.0
// What becomes of a chunk whose bytes NVMe lost: it alone is lost, for good, and said to be.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/host/chunk_mover.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/session/faulty_session_fixture.h"

namespace gemini::client {
namespace {

using server::NvmeFault;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int64_t kBundles = 8;
constexpr absl::Duration kLong = absl::Seconds(60);  // Only a machine that swaps gets there.

class NvmeChecksumTest : public FaultySessionFixture {
 protected:
  // Parameters of tags 0 to 7, of which HOST keeps the last `host_slots`.
  void Open(int64_t host_slots) {
    OpenSession(/*device_slots=*/4, host_slots, /*nvme_slots=*/2 * kBundles);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", kBundles, host_slots, 2 * kBundles);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < kBundles; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), ChunkKind::kParam, 0, i));
    }
  }
  // Of the next chunk that comes back: another leaves for it first.
  void SpoilNextRead(NvmeFault fault) { faults_.Arm(fault, 2); }
  static ChunkId Param(int64_t bundle) { return ChunkOf(BundleId(bundle), ChunkKind::kParam); }
  static ChunkId Grad(int64_t bundle) { return ChunkOf(BundleId(bundle), ChunkKind::kGrad); }
  void ExpectTag(ChunkId chunk, uint64_t tag) {
    ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(chunk));
    EXPECT_TRUE(ChunkHolds(host.data(), tag)) << "chunk " << chunk.value();
  }
  void ExpectLost(ChunkId chunk) {
    EXPECT_THAT(store_->Acquire(chunk), StatusIs(absl::StatusCode::kDataLoss));
  }
  // What memstat shows of it.
  std::pair<int64_t, ChunkId> Damage() {
    const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
    const auto reply = GetStatus(*observer);
    EXPECT_OK(reply);
    const wire::SpaceStatus* space = reply->As<wire::StatusReply>()->spaces()->Get(0);
    return {space->damaged_chunks(), ChunkId(space->last_damaged())};
  }

  ChunkStore* store_ = nullptr;
};

TEST_F(NvmeChecksumTest, ABitThatFlipsOnTheWayBackLosesThatChunkAloneAndForGood) {
  Open(/*host_slots=*/4);
  if (HasFatalFailure()) return;
  EXPECT_EQ(Damage(), std::pair(int64_t{0}, ChunkId()));
  SpoilNextRead(NvmeFault::kFlipsBit);
  EXPECT_THAT(
      store_->Acquire(Param(1)),
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr(absl::StrCat("bring chunk ", Param(1).value(),
                                            " (param of bundle 1) of space store into HOST: read "
                                            "NVME slot 1: its bytes have the CRC32C ")),
                     ContainsRegex("CRC32C [0-9a-f]{8}, and had [0-9a-f]{8} when they were"))));
  EXPECT_EQ(Damage(), std::pair(int64_t{1}, Param(1)));
  // Another read would bring the right bytes: it is not tried.
  const int64_t submitted = faults_.submitted();
  ExpectLost(Param(1));
  EXPECT_EQ(faults_.submitted(), submitted);
  EXPECT_EQ(Damage().first, 1);
  for (int64_t i = 0; i < kBundles; ++i) {
    if (i != 1) ExpectTag(Param(i), i);
  }
  ExpectLost(Param(1));
}

// Their checksums are computed while they are written.
TEST_F(NvmeChecksumTest, LargeChunksComeBackAsOftenAsTheyAreAskedFor) {
  chunk_bytes_ = NvmeRingClient::kLateChecksumBytes;
  Open(/*host_slots=*/4);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 5 * kBundles; ++i) ExpectTag(Param(i % kBundles), i % kBundles);
  EXPECT_EQ(Damage(), std::pair(int64_t{0}, ChunkId()));
  EXPECT_GE(faults_.submitted(), 5 * kBundles / 2);
}

TEST_F(NvmeChecksumTest, ABitThatFlipsOnTheWayOutIsFoundWhenTheChunkComesBack) {
  faults_.Arm(NvmeFault::kFlipsBit, 2);  // The second to be spilled.
  Open(/*host_slots=*/4);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < kBundles; ++i) {
    if (i == 1) {
      ExpectLost(Param(1));
    } else {
      ExpectTag(Param(i), i);
    }
  }
  EXPECT_EQ(Damage(), std::pair(int64_t{1}, Param(1)));
}

TEST_F(NvmeChecksumTest, NewBytesReplaceWhatWasLost) {
  Open(/*host_slots=*/4);
  if (HasFatalFailure()) return;
  SpoilNextRead(NvmeFault::kFlipsBit);
  ExpectLost(Param(0));
  ASSERT_OK(CommitTag(*store_, BundleId(0), ChunkKind::kParam, 1, 70));
  ExpectTag(Param(0), 70);
  // A gradient, which may be overwritten; read and changed, or read, it may not be.
  for (int64_t i = 0; i < kBundles; ++i) {
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireToOverwrite(Grad(i)));
    FillChunk(grad.data(), 80 + i);
  }
  faults_.Arm(NvmeFault::kFlipsBit, 1);
  // Either what leaves is written with a wrong bit, or what comes is read with one.
  for (int64_t i = 0; !faults_.fired(); ++i) {
    ASSERT_LT(i, kBundles);
    store_->Acquire(Grad(i)).IgnoreError();
  }
  int64_t lost = 0;
  for (int64_t i = 0; i < kBundles; ++i) {
    if (store_->Acquire(Grad(i)).ok()) continue;
    ++lost;
    ExpectLost(Grad(i));
    EXPECT_THAT(store_->AcquireUncommitted(Grad(i)), StatusIs(absl::StatusCode::kDataLoss));
    { ASSERT_OK(store_->AcquireToOverwrite(Grad(i))); }
    EXPECT_OK(store_->Acquire(Grad(i)));
  }
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(Damage().first, 2);
  // By now it was on NVMe again, and whole.
  EXPECT_EQ(Look("store").at(Param(0).value()).tier, Tier::kNvme);
  ExpectTag(Param(0), 70);
}

TEST_F(NvmeChecksumTest, AFailedSpillLeavesTheChunkWhereItIs) {
  for (const NvmeFault fault : {NvmeFault::kFails, NvmeFault::kEndsHalf, NvmeFault::kNoSpace}) {
    SCOPED_TRACE(server::NvmeFaultName(fault));
    faults_.Arm(fault, 0);
    session_.reset();
    Open(/*host_slots=*/8);
    if (HasFatalFailure()) return;
    faults_.Arm(fault, 1);
    EXPECT_THAT(store_->AcquireSpare(),
                StatusIs(fault == NvmeFault::kNoSpace ? absl::StatusCode::kResourceExhausted
                                                      : absl::StatusCode::kDataLoss,
                         HasSubstr("spill chunk 0 (param of bundle 0) of space store: write NVME "
                                   "slot 0: ")));
    EXPECT_EQ(Damage(), std::pair(int64_t{0}, ChunkId()));
    // The next try takes the same slot of NVMe, and whole.
    EXPECT_OK(store_->AcquireSpare());
    for (int64_t i = 0; i < kBundles; ++i) ExpectTag(Param(i), i);
  }
}

TEST_F(NvmeChecksumTest, AnErrorOfTheDiskLosesTheChunkToo) {
  Open(/*host_slots=*/4);
  if (HasFatalFailure()) return;
  SpoilNextRead(NvmeFault::kFails);
  EXPECT_THAT(
      store_->Acquire(Param(2)),
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr("(param of bundle 2) of space store"), HasSubstr("its log says"))));
  ExpectLost(Param(2));
  EXPECT_EQ(Damage(), std::pair(int64_t{1}, Param(2)));
  // No error of the disk's: the next try may succeed. A HOST slot is free since the failure.
  faults_.Arm(NvmeFault::kNoSpace, 1);
  EXPECT_THAT(store_->Acquire(Param(3)), StatusIs(absl::StatusCode::kResourceExhausted));
  ExpectTag(Param(3), 3);
}

TEST_F(NvmeChecksumTest, ReadingAheadGoesOnWithoutTheLostChunk) {
  Open(/*host_slots=*/kFreeSlots + 4);
  if (HasFatalFailure()) return;
  // All but a few are on NVMe: whatever is held pushes them there.
  {
    std::vector<HostChunk> spares;
    for (int64_t i = 0; i < kFreeSlots + 4; ++i) {
      ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
      spares.push_back(std::move(spare));
    }
  }
  faults_.Arm(NvmeFault::kFlipsBit, 1);
  Plan plan;
  for (int64_t i = 0; i < kBundles; ++i)
    plan.host_uses.push_back({.chunk = Param(i), .at_ns = 10 * i});
  store_->Foresee(policies::HostForesight(plan.host_uses, 10 * kBundles, /*read_ns=*/20, 0,
                                          kBundles * kNumChunkKinds));
  ChunkMover ahead(*store_);
  ahead.StartForPlan();
  const absl::Time deadline = absl::Now() + kLong;
  while (Damage().first == 0) ASSERT_LT(absl::Now(), deadline) << "nothing is read ahead";
  const ChunkId lost = Damage().second;
  // Nobody asks for it: it comes because it is used next.
  const auto await_in_host = [&](ChunkId chunk) {
    while (chunk != lost && Look("store").at(chunk.value()).tier != Tier::kHost) {
      ASSERT_LT(absl::Now(), deadline) << "chunk " << chunk.value() << " does not come";
    }
  };
  for (int64_t i = 0; i < 3; ++i) await_in_host(Param(i));
  for (int64_t i = 0; i < 2 * kBundles && !HasFatalFailure(); ++i) {
    const ChunkId next = Param(i % kBundles);
    await_in_host(next);
    if (next == lost) {
      ExpectLost(next);
    } else {
      ExpectTag(next, i % kBundles);
    }
  }
  EXPECT_EQ(Damage().first, 1);
}

TEST_F(NvmeChecksumTest, WithoutChecksumsNothingIsCompared) {
  nvme_checksums_ = false;
  Open(/*host_slots=*/4);
  if (HasFatalFailure()) return;
  SpoilNextRead(NvmeFault::kFlipsBit);
  ASSERT_OK_AND_ASSIGN(const HostChunk chunk, store_->Acquire(Param(0)));
  EXPECT_FALSE(ChunkHolds(chunk.data(), 0));
  ExpectTag(Param(1), 1);
}

}  // namespace
}  // namespace gemini::client
