// SPDX-License-Identifier: Apache-2.0
#include "client/device/copy_landings.h"

#include <utility>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr ChunkKind kGrad = ChunkKind::kGrad;

// With a link that takes long for a chunk: who does not wait for its copy is done long before.
class CopyLandingsTest : public SessionFixture {
 protected:
  CopyLandingsTest() { chunk_bytes_ = 1 << 20; }

  // Of `num_bundles` bundles, of which each parameter is committed with 5 as tag.
  void Open(int64_t num_bundles, int64_t host_slots, int64_t nvme_slots = 0) {
    OpenSession(/*device_slots=*/1, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("space", num_bundles, host_slots, nvme_slots);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < num_bundles; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, 5));
    }
  }
  // Begins a copy of the chunk that lands by itself.
  void BeginToFetch(ChunkId chunk) {
    ASSERT_OK_AND_ASSIGN(HostChunk source, store_->Acquire(chunk));
    device_.resize(static_cast<size_t>(chunk_bytes_));
    last_ = copies_.Copy(CopyStream::kFetch, device_.data(), source.data(), chunk_bytes_, {});
    landings_.Add(last_, std::move(source));
  }
  static Intent StepOne() {
    Intent intent;
    intent.step = 1;
    return intent;
  }

  CopyEngineHost copies_{{8 << 20, 0}};
  std::vector<std::byte> device_;
  CopyEvent last_;
  CopyLandings landings_{copies_};
  ChunkStore* store_ = nullptr;
  const std::vector<BundleId> bundles_ = {BundleId(0)};
};

TEST_F(CopyLandingsTest, ASlotIsHeldUntilItsCopyIsDone) {
  Open(1, 2);
  if (HasFatalFailure()) return;
  BeginToFetch(ChunkOf(BundleId(0), kParam));
  // What replaces it does not take its slot, and the next one waits for it.
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 0, 6));
  ASSERT_OK_AND_ASSIGN(const HostChunk spare, store_->AcquireSpare());
  EXPECT_TRUE(copies_.Done(last_));
  EXPECT_TRUE(ChunkHolds(device_.data(), 5, chunk_bytes_));
  EXPECT_THAT(store_->AcquireSpare(), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(CopyLandingsTest, WhatIsFetchedFromMayBeSpilledAfterwards) {
  Open(1, /*host_slots=*/1, /*nvme_slots=*/1);
  if (HasFatalFailure()) return;
  BeginToFetch(ChunkOf(BundleId(0), kParam));
  ASSERT_OK(store_->AcquireSpare().status());
  EXPECT_TRUE(copies_.Done(last_));
  EXPECT_EQ(store_->stored_bytes().nvme_written_bytes, chunk_bytes_);
}

TEST_F(CopyLandingsTest, NoMoreAreUnderWayThanThereIsRoomFor) {
  Open(1, 2);
  if (HasFatalFailure()) return;
  CopyEvent first;
  for (int64_t i = 0; i < kFetchCopies; ++i) {
    landings_.AwaitRoom();
    BeginToFetch(ChunkOf(BundleId(0), kParam));
    if (i == 0) first = last_;
  }
  landings_.AwaitRoom();
  EXPECT_TRUE(copies_.Done(first));
}

TEST_F(CopyLandingsTest, AllHaveEndedWhenTheyWereWaitedFor) {
  Open(1, 2);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 3; ++i) BeginToFetch(ChunkOf(BundleId(0), kParam));
  landings_.AwaitAll();
  EXPECT_TRUE(copies_.Done(last_));
  // Nobody holds it any more: it can go.
  ASSERT_OK_AND_ASSIGN(const HostChunk spare, store_->AcquireSpare());
  landings_.AwaitAll();
}

TEST_F(CopyLandingsTest, AnUpdateWaitsForCopiesOfItsGradients) {
  Open(1, 20);
  if (HasFatalFailure()) return;
  ASSERT_OK(store_->AcquireUncommitted(ChunkOf(BundleId(0), kGrad)).status());
  BeginToFetch(ChunkOf(BundleId(0), kGrad));
  EXPECT_OK(store_->updates().Begin(StepOne(), bundles_));
  EXPECT_TRUE(copies_.Done(last_));
  // Who holds one otherwise is not waited for.
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 1, 6));
  ASSERT_OK_AND_ASSIGN(const HostChunk held, store_->Acquire(ChunkOf(BundleId(0), kGrad)));
  Intent intent = StepOne();
  intent.step = 2;
  EXPECT_THAT(store_->updates().Begin(intent, bundles_),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Others may go on for ever.
TEST_F(CopyLandingsTest, AnUpdateDoesNotWaitForOtherCopies) {
  Open(2, 20);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < kFetchCopies; ++i) BeginToFetch(ChunkOf(BundleId(1), kParam));
  EXPECT_OK(store_->updates().Begin(StepOne(), bundles_));
  EXPECT_FALSE(copies_.Done(last_));
}

TEST_F(CopyLandingsTest, AnUpdateWaitsForCopiesThatHoldTheSlotsThatItNeeds) {
  const int64_t needed = UpdateSlots(StateFormat());
  Open(2, needed + 1);
  if (HasFatalFailure()) return;
  BeginToFetch(ChunkOf(BundleId(0), kParam));
  BeginToFetch(ChunkOf(BundleId(1), kParam));
  EXPECT_OK(store_->updates().Begin(StepOne(), bundles_));
}

TEST_F(CopyLandingsTest, AVersionThatIsMadeOnDeviceWaitsForCopiesOfTheOneBefore) {
  Open(1, 20);
  if (HasFatalFailure()) return;
  for (const ChunkKind kind : UpdatedKinds(store_->format())) {
    ASSERT_OK(CommitTag(*store_, BundleId(0), kind, 0, 5));
  }
  BeginToFetch(ChunkOf(BundleId(0), kParam));
  DeviceVersion version = {.bundle = BundleId(0), .slots = {}};
  for (const ChunkKind kind : UpdatedKinds(store_->format())) version.slots[kind] = SlotId(0);
  EXPECT_OK(store_->updates().Begin(StepOne(), {}, absl::MakeConstSpan(&version, 1)));
  EXPECT_TRUE(copies_.Done(last_));
}

TEST_F(CopyLandingsTest, AChunkBecomesFreeWhenItsCopyIsDone) {
  Open(1, 2);
  if (HasFatalFailure()) return;
  ASSERT_OK(store_->AcquireUncommitted(ChunkOf(BundleId(0), kGrad)).status());
  BeginToFetch(ChunkOf(BundleId(0), kGrad));
  store_->Free(ChunkOf(BundleId(0), kGrad));
  EXPECT_TRUE(copies_.Done(last_));
  EXPECT_EQ(store_->stored_bytes().host_bytes, chunk_bytes_);
}

}  // namespace
}  // namespace gemini::client
