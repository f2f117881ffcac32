// SPDX-License-Identifier: Apache-2.0
// Ranges that come on-line while their copies are held up, or take long: a thread goes on where its
// operators may be late, and everybody finds the bytes of then.
#include <algorithm>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "tests/client/plan/lazy_operators.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

class OwnResidencyTest : public SessionFixture {
 protected:
  // Three bundles, each parameter of which is committed with its number as tag; a residency of its
  // own.
  void OpenOn(CopyEngine& copies, int64_t device_slots) {
    OpenSession(/*device_slots=*/1, /*host_slots=*/12, 0);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("space", 3, 12, 0);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < 3; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), ChunkKind::kParam, 0, i));
    }
    arena_.resize(device_slots * chunk_bytes_);
    budget_.emplace(device_slots * chunk_bytes_);
    own_.emplace(*budget_, copies, arena_.data(), device_slots, chunk_bytes_);
    for (int64_t i = 0; i < 3; ++i) {
      params_.push_back(own_->AddRange(*store_, BundleId(i), 1, ChunkKind::kParam));
    }
  }
  void TearDown() override { own_.reset(); }  // Before what it copies by.

  ChunkStore* store_ = nullptr;
  std::vector<std::byte> arena_;
  std::optional<DeviceBudget> budget_;
  std::optional<Residency> own_;
  std::vector<RangeId> params_;
};

class ResidencyOnlineTest : public OwnResidencyTest {
 protected:
  void Open(int64_t device_slots) {
    OpenOn(operators_, device_slots);
    if (HasFatalFailure()) return;
    // Whatever is fetched from now on waits for the gate.
    operators_.Run([this] { gate_.wait(); });
    operators_.Copy(CopyStream::kFetch, nullptr, nullptr, 0, operators_.AfterOperators());
  }
  // Begins an operator that looks at the parameter.
  void Look(int64_t bundle, uint64_t tag) {
    std::byte* address = nullptr;
    ASSERT_OK(own_->Pin({&params_[bundle], 1}, {&address, 1}));
    operators_.Run([this, address, tag] {
      EXPECT_TRUE(ChunkHolds(address, tag));
      ++looks_;
    });
    own_->Unpin(params_[bundle], /*dirty=*/false);
  }
  void Finish() {
    gate_.count_down();
    operators_.Finish();
  }
  void TearDown() override {
    if (!gate_.try_wait()) Finish();  // The test has failed.
    OwnResidencyTest::TearDown();
  }

  LazyOperators operators_{nullptr};
  std::latch gate_{1};
  int looks_ = 0;
};

TEST_F(ResidencyOnlineTest, APinDoesNotWaitForItsCopyWhichHasTheBytesOfThen) {
  Open(/*device_slots=*/2);
  if (HasFatalFailure()) return;
  Look(0, 0);
  ASSERT_OK(CommitTag(*store_, BundleId(0), ChunkKind::kParam, 1, 50));
  // Whoever takes the slot of the version before would write over it.
  for (int64_t i = 0; i < 8; ++i) {
    ASSERT_OK_AND_ASSIGN(const HostChunk spare, store_->AcquireSpare());
    FillChunk(spare.data(), 99);
  }
  EXPECT_EQ(looks_, 0);
  Finish();
  EXPECT_EQ(looks_, 1);
}

TEST_F(ResidencyOnlineTest, ASlotIsTakenOverWhileACopyIntoItIsUnderWay) {
  Open(/*device_slots=*/1);
  if (HasFatalFailure()) return;
  for (int64_t bundle = 0; bundle < 3; ++bundle) Look(bundle, bundle);
  EXPECT_EQ(looks_, 0);
  Finish();
  EXPECT_EQ(looks_, 3);
  EXPECT_EQ(budget_->used_bytes(), chunk_bytes_);
}

TEST_F(ResidencyOnlineTest, WhatIsDroppedOrMakesRoomMeanwhileIsFetchedAgain) {
  Open(/*device_slots=*/2);
  if (HasFatalFailure()) return;
  Look(0, 0);
  Look(1, 1);
  ASSERT_OK(own_->Drop(params_[0]));
  EXPECT_TRUE(own_->MakeRoom(2 * chunk_bytes_));
  EXPECT_EQ(budget_->used_bytes(), 0);
  ASSERT_OK(CommitTag(*store_, BundleId(0), ChunkKind::kParam, 1, 50));
  Look(1, 1);
  Look(0, 50);
  Finish();
  EXPECT_EQ(looks_, 4);
}

// Its memory goes back to the server.
TEST_F(ResidencyOnlineTest, ASmallerBudgetWaitsForCopiesIntoWhatItGivesUp) {
  Open(/*device_slots=*/3);
  if (HasFatalFailure()) return;
  for (int64_t bundle = 0; bundle < 3; ++bundle) Look(bundle, bundle);
  std::thread opener([this] { gate_.count_down(); });
  EXPECT_OK(own_->SetBudget(chunk_bytes_));
  FillChunk(arena_.data() + chunk_bytes_, 98);
  FillChunk(arena_.data() + 2 * chunk_bytes_, 99);
  opener.join();
  operators_.Finish();
  EXPECT_EQ(looks_, 3);
  EXPECT_TRUE(ChunkHolds(arena_.data() + chunk_bytes_, 98));
  EXPECT_TRUE(ChunkHolds(arena_.data() + 2 * chunk_bytes_, 99));
}

// Over a link on which a chunk takes 62 ms, and with operators that are over when they return.
class PacedLinkTest : public OwnResidencyTest {
 protected:
  PacedLinkTest() { chunk_bytes_ = 1 << 20; }

  CopyEngineHost copies_{{16 << 20, 0}};
};

TEST_F(PacedLinkTest, WhatIsFetchedOnlineIsAStallOfThatCause) {
  OpenOn(copies_, /*device_slots=*/1);
  if (HasFatalFailure()) return;
  std::byte* address = nullptr;
  ASSERT_OK(own_->Pin({&params_[1], 1}, {&address, 1}));
  EXPECT_TRUE(ChunkHolds(address, 1, chunk_bytes_));
  const ResidencyStats stats = own_->stats();
  EXPECT_GT(stats.stall_by_cause_ns[static_cast<size_t>(StallCause::kOnline)], 0);
  EXPECT_EQ(stats.stall_by_cause_ns[static_cast<size_t>(StallCause::kTransfer)], 0);
  own_->Unpin(params_[1], /*dirty=*/false);
}

// Its first chunk is on its way, behind another copy, when the second is found to be FREE.
TEST_F(PacedLinkTest, APinThatFailsLeavesNoCopyUnderWay) {
  OpenOn(copies_, /*device_slots=*/2);
  if (HasFatalFailure()) return;
  const std::vector<RangeId> set = {params_[0],
                                    own_->AddRange(*store_, BundleId(0), 1, ChunkKind::kGrad)};
  std::vector<std::byte*> addresses(2);
  const std::vector<std::byte> ballast(chunk_bytes_);
  std::vector<std::byte> ballast_copy(chunk_bytes_);
  copies_.Copy(CopyStream::kFetch, ballast_copy.data(), ballast.data(), chunk_bytes_, {});
  EXPECT_THAT(own_->Pin(set, absl::MakeSpan(addresses)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(budget_->used_bytes(), 0);
  std::ranges::fill(arena_, std::byte{9});
  copies_.Wait(copies_.Copy(CopyStream::kFetch, nullptr, nullptr, 0, {}));
  EXPECT_TRUE(std::ranges::all_of(arena_, [](std::byte byte) { return byte == std::byte{9}; }));
}

}  // namespace
}  // namespace gemini::client
