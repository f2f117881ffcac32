// SPDX-License-Identifier: Apache-2.0
// What Residency offers to whoever moves ranges by a plan, where the executor's own tests cannot
// meet the moment.
#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "client/device/planned_placement.h"
#include "client/device/residency.h"
#include "tests/client/plan/lazy_operators.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

class ResidencyPlannedTest : public SessionFixture {
 protected:
  // Begins a plan that fetches or keeps these ranges, and whose lanes have nothing more to do.
  static void BeginPlan(DeviceTier& tier, RangeId fetched, RangeId kept) {
    PlanContents contents;
    const auto only = [](RangeId range) {
      std::vector<bool> set(static_cast<size_t>(range.value() + 1));
      if (!set.empty()) set.back() = true;
      return set;
    };
    contents.fetched = only(fetched);
    contents.kept = only(kept);
    MutexLock lock(tier.mutex);
    tier.plan.Begin(std::move(contents), 0);
    for (size_t lane = 0; lane < FollowedPlan::kNumLanes; ++lane) {
      tier.plan.SetActivity(lane, FollowedPlan::Activity::kIdle);
    }
  }
  static FetchStart Begin(DeviceTier& tier, RangeId range, SlotId slot, bool blank) {
    MutexLock lock(tier.mutex);
    return BeginFetch(tier, range, slot, blank);
  }
};

TEST_F(ResidencyPlannedTest, AFetchWhosePlanEndsMeanwhileChargesNothing) {
  OpenSession(/*device_slots=*/1, /*host_slots=*/4, 0);
  ASSERT_NE(session_, nullptr);
  ChunkStore* const store = OpenSpace("space", 2, 4, 0);
  ASSERT_NE(store, nullptr);
  for (int64_t i = 0; i < 2; ++i) {
    ASSERT_OK(CommitTag(*store, BundleId(i), ChunkKind::kParam, 0, 1));
  }
  CopyEngineHost copies;
  DeviceBudget own_budget(2 * kTestChunkBytes);
  std::vector<std::byte> arena(kTestChunkBytes);
  Residency own(own_budget, copies, arena.data(), /*num_slots=*/1, kTestChunkBytes);
  const RangeId there = own.AddRange(*store, BundleId(0), 1, ChunkKind::kParam);
  const RangeId range = own.AddRange(*store, BundleId(1), 1, ChunkKind::kParam);
  std::byte* address = nullptr;
  ASSERT_OK(own.Pin({&there, 1}, {&address, 1}));  // In the only slot.
  BeginPlan(own.tier(), range, RangeId());
  std::future<FetchStart> start = std::async(
      std::launch::async, [&] { return Begin(own.tier(), range, SlotId(0), /*blank=*/false); });
  // One who wants the range finds that nothing will vacate its slot, and ends the plan.
  EXPECT_THAT(own.Pin({&range, 1}, {&address, 1}), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(start.get(), FetchStart::kEnded);
  EXPECT_EQ(own.tier().progress.cause(), Divergence::kPinned);
  EXPECT_EQ(own_budget.used_bytes(), kTestChunkBytes);
  own.Unpin(there, /*dirty=*/false);
}

// A residency of its own, with two slots and one bundle of two chunks that an update on DEVICE
// would use.
class KeptGradientTest : public ResidencyPlannedTest {
 protected:
  void SetUp() override {
    ResidencyPlannedTest::SetUp();
    OpenSession(/*device_slots=*/1, /*host_slots=*/12, 0);
    ASSERT_NE(session_, nullptr);
    store_ = OpenSpace("space", 2, 12, 0);
    ASSERT_NE(store_, nullptr);
    for (int64_t bundle = 0; bundle < 2; ++bundle) {
      ASSERT_OK(CommitTag(*store_, BundleId(bundle), ChunkKind::kParam, 0, 1));
    }
    arena_.resize(kSlots * chunk_bytes_);
    own_.emplace(budget_, copies(), arena_.data(), kSlots, chunk_bytes_);
    grad_ = own_->AddRange(*store_, BundleId(0), 1, ChunkKind::kGrad);
    BeginPlan(own_->tier(), RangeId(), grad_);
  }
  void TearDown() override {
    own_.reset();
    ResidencyPlannedTest::TearDown();
  }
  virtual CopyEngine& copies() { return copies_; }
  FetchStart Begin(RangeId range, SlotId slot, bool blank) {
    return ResidencyPlannedTest::Begin(own_->tier(), range, slot, blank);
  }
  absl::Status Finish(RangeId range) {
    MutexLock lock(own_->tier().mutex);
    return FinishFetch(own_->tier(), range);
  }
  absl::Status Evict(RangeId range) {
    MutexLock lock(own_->tier().mutex);
    return own_->tier().Evict(range);
  }
  absl::Status WriteAll(char value, bool alone) {
    const std::vector<char> bytes(chunk_bytes_, value);
    absl::StatusOr<PendingWrite> write =
        own_->BeginWrite(grad_, 0, bytes.data(), chunk_bytes_, alone);
    if (write.ok()) write->Wait();
    return write.status();
  }
  char FirstByteInHost() {
    const absl::StatusOr<HostChunk> chunk = store_->Acquire(ChunkOf(BundleId(0), ChunkKind::kGrad));
    EXPECT_OK(chunk);
    return chunk.ok() ? static_cast<char>(*chunk->data()) : '\0';
  }

  static constexpr int64_t kSlots = 2;
  static constexpr int64_t kLargestChunkBytes = 4 << 20;
  CopyEngineHost copies_;
  DeviceBudget budget_{kSlots * kLargestChunkBytes};
  std::vector<std::byte> arena_;
  ChunkStore* store_ = nullptr;
  std::optional<Residency> own_;
  RangeId grad_;
};

TEST_F(KeptGradientTest, GoesIntoTheRoomThatThePlanKept) {
  ASSERT_EQ(Begin(grad_, SlotId(1), /*blank=*/true), FetchStart::kStarted);
  EXPECT_EQ(budget_.used_bytes(), kTestChunkBytes);
  ASSERT_OK(WriteAll('g', /*alone=*/true));
  EXPECT_FALSE(store_->HasPayload(ChunkOf(BundleId(0), ChunkKind::kGrad)));
  EXPECT_EQ(own_->DeviceSlot(grad_), SlotId(1));
  EXPECT_EQ(own_->stats().evict_bytes, 0);
  EXPECT_EQ(static_cast<char>(arena_[kTestChunkBytes]), 'g');
  ASSERT_OK(Evict(grad_));
  EXPECT_EQ(FirstByteInHost(), 'g');
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(KeptGradientTest, WithoutItsRoomItGoesToHost) {
  ASSERT_OK(WriteAll('h', /*alone=*/true));
  EXPECT_FALSE(own_->tier().progress.active());  // It would have waited for ever.
  EXPECT_EQ(FirstByteInHost(), 'h');
}

TEST_F(KeptGradientTest, RoomIsOfNoUseForHalfARange) {
  ASSERT_OK(WriteAll('a', /*alone=*/false));
  ASSERT_EQ(Begin(grad_, SlotId(0), /*blank=*/true), FetchStart::kStarted);
  const char one = 'b';
  ASSERT_OK_AND_ASSIGN(PendingWrite write, own_->BeginWrite(grad_, 1, &one, 1, /*alone=*/false));
  write.Wait();
  EXPECT_EQ(budget_.used_bytes(), 0);
  EXPECT_EQ(FirstByteInHost(), 'a');
}

TEST_F(KeptGradientTest, AnOperatorFindsTheBytesAndNotTheRoom) {
  ASSERT_OK(WriteAll('a', /*alone=*/false));
  ASSERT_EQ(Begin(grad_, SlotId(0), /*blank=*/true), FetchStart::kStarted);
  std::array<std::byte*, 1> address = {};
  ASSERT_OK(own_->Pin({grad_}, absl::MakeSpan(address)));
  EXPECT_EQ(static_cast<char>(*address[0]), 'a');
  own_->Unpin(grad_, /*dirty=*/false);
}

TEST_F(KeptGradientTest, RoomGivesWayToNonModelData) {
  ASSERT_EQ(Begin(grad_, SlotId(0), /*blank=*/true), FetchStart::kStarted);
  EXPECT_TRUE(own_->MakeRoom(budget_.budget_bytes()));
  EXPECT_EQ(budget_.used_bytes(), 0);
  EXPECT_EQ(own_->DeviceSlot(grad_), SlotId());
}

TEST_F(KeptGradientTest, WhatStaysIsWrittenBackAndReadMeanwhile) {
  const RangeId param = own_->AddRange(*store_, BundleId(1), 1, ChunkKind::kParam);
  std::array<std::byte*, 1> address = {};
  ASSERT_OK(own_->Pin({param}, absl::MakeSpan(address)));
  *address[0] = std::byte{'p'};
  own_->Unpin(param, /*dirty=*/true);
  ASSERT_OK(own_->Pin({param}, absl::MakeSpan(address)));
  ASSERT_OK(own_->WriteBack(param));
  EXPECT_EQ(own_->stats().evict_bytes, kTestChunkBytes);
  own_->Unpin(param, /*dirty=*/false);
  ASSERT_OK(own_->WriteBack(param));  // Clean.
  ASSERT_OK(Evict(param));
  EXPECT_EQ(own_->stats().evict_bytes, kTestChunkBytes);
  ASSERT_OK_AND_ASSIGN(const HostChunk chunk,
                       store_->Acquire(ChunkOf(BundleId(1), ChunkKind::kParam)));
  EXPECT_EQ(static_cast<char>(*chunk.data()), 'p');
}

// With operators that run when somebody waits for them.
class LateOperatorsTest : public KeptGradientTest {
 protected:
  LateOperatorsTest() { chunk_bytes_ = kLargestChunkBytes; }
  void TearDown() override {
    operators_.Finish();  // Before its memory goes.
    KeptGradientTest::TearDown();
  }
  CopyEngine& copies() override { return operators_; }

  LazyOperators operators_{nullptr};
};

TEST_F(LateOperatorsTest, WhatTheyWriteIntoKeptRoomIsWhatLeaves) {
  const std::vector<char> bytes(chunk_bytes_, 'g');
  ASSERT_EQ(Begin(grad_, SlotId(1), /*blank=*/true), FetchStart::kStarted);
  ASSERT_OK(own_->BeginWrite(grad_, 0, bytes.data(), chunk_bytes_, /*alone=*/true).status());
  EXPECT_NE(static_cast<char>(arena_[chunk_bytes_]), 'g');
  ASSERT_OK(Evict(grad_));
  EXPECT_EQ(FirstByteInHost(), 'g');
  operators_.Finish();  // While there is what it copies.
}

// The copy takes long enough that an operator that did not wait would be over before.
TEST_F(LateOperatorsTest, WhatTheyWriteComesAfterTheFetch) {
  ASSERT_OK(WriteAll('a', /*alone=*/false));
  ASSERT_EQ(Begin(grad_, SlotId(0), /*blank=*/false), FetchStart::kStarted);
  ASSERT_OK(Finish(grad_));
  const char one = 'b';
  ASSERT_OK(own_->BeginWrite(grad_, chunk_bytes_ - 1, &one, 1, /*alone=*/false).status());
  operators_.Finish();
  EXPECT_EQ(static_cast<char>(arena_[0]), 'a');
  EXPECT_EQ(static_cast<char>(arena_[chunk_bytes_ - 1]), 'b');
}

// Nobody has used what was fetched, so nothing else is behind the copy.
TEST_F(LateOperatorsTest, WhatIsWrittenInHostComesAfterTheFetchFromThere) {
  ASSERT_OK(WriteAll('a', /*alone=*/false));
  const std::vector<std::byte> ballast(64 << 20);
  std::vector<std::byte> ballast_copy(ballast.size());
  ASSERT_EQ(Begin(grad_, SlotId(0), /*blank=*/false), FetchStart::kStarted);
  operators_.Copy(CopyStream::kFetch, ballast_copy.data(), ballast.data(), ballast.size(), {});
  ASSERT_OK(Finish(grad_));
  ASSERT_OK(own_->Drop(grad_));
  ASSERT_OK(WriteAll('b', /*alone=*/false));
  own_->tier().landings.AwaitAll();
  EXPECT_EQ(static_cast<char>(arena_[0]), 'a');
  EXPECT_EQ(FirstByteInHost(), 'b');
}

// Zeros come as all that is fetched does.
TEST_F(LateOperatorsTest, AMomentThatIsNowhereIsFetchedAsZeros) {
  const RangeId moment = own_->AddRange(*store_, BundleId(0), 1, ChunkKind::kExpAvg);
  std::fill(arena_.begin(), arena_.end(), std::byte{1});
  ASSERT_EQ(Begin(moment, SlotId(0), /*blank=*/false), FetchStart::kStarted);
  ASSERT_OK(Finish(moment));
  std::array<std::byte*, 1> address = {};
  ASSERT_OK(own_->Pin({moment}, absl::MakeSpan(address)));
  bool all_zero = false;
  operators_.Run([&] {
    all_zero = std::all_of(address[0], address[0] + chunk_bytes_,
                           [](std::byte byte) { return byte == std::byte{0}; });
  });
  own_->Unpin(moment, /*dirty=*/false);
  operators_.Finish();
  EXPECT_TRUE(all_zero);
  EXPECT_EQ(arena_[chunk_bytes_], std::byte{1});
}

// An update that waits for a gradient brings it itself, and may be what its fetch waits for.
TEST_F(KeptGradientTest, WhatIsIncomingIsNotWaitedForToBeWrittenBack) {
  ASSERT_OK(WriteAll('a', /*alone=*/false));
  ASSERT_EQ(Begin(grad_, SlotId(0), /*blank=*/false), FetchStart::kStarted);
  EXPECT_OK(own_->WriteBack(grad_));
  ASSERT_OK(own_->Drop(grad_));
  ASSERT_OK(Finish(grad_));
  EXPECT_EQ(own_->DeviceSlot(grad_), SlotId());
  EXPECT_EQ(budget_.used_bytes(), 0);
}

}  // namespace
}  // namespace gemini::client
