// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_executor.h"

#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "client/plan/plan_binding.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr int32_t kPositions = 12;
constexpr int32_t kAfter = 5;

// A plan that fetches one range a round, behind operator kAfter.
class PlanExecutorTest : public SessionFixture {
 protected:
  void SetUp() override {
    OpenSession(/*device_slots=*/1, /*host_slots=*/4, 0);
    ASSERT_NE(session_, nullptr);
    ChunkStore* const store = OpenSpace("space", 1, 4, 0);
    ASSERT_NE(store, nullptr);
    ASSERT_OK(CommitTag(*store, BundleId(0), ChunkKind::kParam, 0, 1));
    own_.emplace(budget_, copies_, arena_.data(), /*num_slots=*/1, kTestChunkBytes);
    range_ = own_->AddRange(*store, BundleId(0), 1, ChunkKind::kParam);
    auto bound = std::make_shared<BoundPlan>();
    bound->plan.ranges = {{}};
    bound->plan.first_use.assign(kPositions + 1, 0);
    bound->plan.fetches = {{.range = 0, .slot = SlotId(0), .after = kAfter, .needed_at = 7}};
    bound->ranges = {range_};
    bound->fetch_turns = {{}};
    bound->moves_of = {{.fetches = 1, .evictions = 1}};
    plan_ = std::move(bound);
    executor_.emplace(*own_);
  }
  ~PlanExecutorTest() override {
    executor_.reset();
    own_.reset();
  }

  // Whether all that can move has, in a time that is beyond what it takes.
  bool Rests() {
    std::future<void> rest = std::async(std::launch::async, [this] { executor_->AwaitRest(); });
    const bool rests = rest.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    if (!rests) executor_->Abandon(Divergence::kOperator);
    return rests;
  }

  CopyEngineHost copies_;
  DeviceBudget budget_{kTestChunkBytes};
  std::vector<std::byte> arena_ = std::vector<std::byte>(kTestChunkBytes);
  std::optional<Residency> own_;
  RangeId range_;
  std::shared_ptr<const BoundPlan> plan_;
  std::optional<PlanExecutor> executor_;
};

// Operators of several threads tell of their ends in any order. The thread that the first word
// wakes looks behind the second one, unless it is quick: so several times.
TEST_F(PlanExecutorTest, AnOlderWordOnProgressTakesNothingBack) {
  for (int64_t round = 0; round < 50; ++round) {
    SCOPED_TRACE(round);
    const int64_t first = round * kPositions;
    ASSERT_OK(executor_->Start(plan_, first));
    ASSERT_TRUE(Rests());
    EXPECT_EQ(own_->DeviceSlot(range_), SlotId());
    executor_->Progressed(Gate::EndOf(first + kAfter));
    executor_->Progressed(Gate::BeginOf(first + kAfter));
    ASSERT_TRUE(Rests());
    EXPECT_EQ(own_->DeviceSlot(range_), SlotId(0));
    executor_->Stop();
    ASSERT_OK(own_->Drop(range_));
  }
}

// What leaves DEVICE is copied when the test says so.
class HeldEvictions : public CopyEngineHost {
 public:
  using CopyEngineHost::Copy;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after, CopySubject subject) override {
    if (stream == CopyStream::kEvict) release.wait();
    return CopyEngineHost::Copy(stream, destination, source, size_bytes, after, subject);
  }
  std::latch release{1};
};

// Two ranges on DEVICE, of which the first is written and stays until the copy to HOST is made.
class CleanedRangeTest : public SessionFixture {
 protected:
  static constexpr int64_t kRanges = 2;

  void SetUp() override {
    OpenSession(/*device_slots=*/1, /*host_slots=*/4, 0);
    ASSERT_NE(session_, nullptr);
    store_ = OpenSpace("space", kRanges, 4, 0);
    ASSERT_NE(store_, nullptr);
    own_.emplace(budget_, copies_, arena_.data(), kRanges, kTestChunkBytes);
    for (int64_t i = 0; i < kRanges; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), ChunkKind::kParam, 0, 1));
      ranges_.push_back(own_->AddRange(*store_, BundleId(i), 1, ChunkKind::kParam));
    }
  }

  // The first range is written back behind operator 0, and both may leave behind operator 1.
  absl::StatusOr<std::shared_ptr<const BoundPlan>> Bind() {
    Trace trace;
    trace.tensors = {{kTestChunkBytes, TensorGroup::kBuffer, 0},
                     {kTestChunkBytes, TensorGroup::kBuffer, 0}};
    trace.operators = {{0, 2, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0}};
    trace.uses = {{.tensor = 0, .written = true}, {.tensor = 1}};
    Plan plan;
    plan.fingerprint = Fingerprint(trace);
    plan.chunk_bytes = kTestChunkBytes;
    plan.device_bytes = kRanges * kTestChunkBytes;
    plan.ranges = {{.first = BundleId(0)}, {.first = BundleId(1)}};
    plan.first_use = {0, 2, 2, 2};
    plan.uses = {0, 1};
    for (int32_t i = 0; i < kRanges; ++i) {
      const SlotId slot = own_->DeviceSlot(ranges_[i]);
      plan.initial.push_back({i, slot});
      plan.fetches.push_back({.range = i, .slot = slot, .after = 2, .needed_at = 3});
    }
    plan.evictions = {{.range = 0, .after = 0, .writes_back = true, .stays = true},
                      {.range = 0, .after = 1},
                      {.range = 1, .after = 1}};
    return BindPlan(std::move(plan), trace, {&store_, 1}, *own_, budget_.budget_bytes());
  }

  void AwaitAbsence(RangeId range) {
    MutexLock lock(own_->tier().mutex);
    while (own_->tier().table.at(range).state != RangeState::kAbsent) own_->tier().WaitForChange();
  }

  HeldEvictions copies_;
  DeviceBudget budget_{kRanges * kTestChunkBytes};
  std::vector<std::byte> arena_ = std::vector<std::byte>(kRanges * kTestChunkBytes);
  ChunkStore* store_ = nullptr;
  std::optional<Residency> own_;
  std::vector<RangeId> ranges_;
};

// Operators wait for the room of all that is due, so what is clean must not queue behind a copy.
TEST_F(CleanedRangeTest, WhatIsCleanLeavesWhileAnotherRangeIsWrittenBack) {
  std::vector<std::byte*> addresses(kRanges);
  ASSERT_OK(own_->Pin(ranges_, absl::MakeSpan(addresses)));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const BoundPlan> plan, Bind());
  PlanExecutor executor(*own_);
  ASSERT_OK(executor.Start(plan, 0));
  own_->Unpin(ranges_[0], /*dirty=*/true);
  own_->Unpin(ranges_[1], /*dirty=*/false);
  executor.Progressed(Gate::EndOf(1));
  std::future<void> clean_left =
      std::async(std::launch::async, [this] { AwaitAbsence(ranges_[1]); });
  EXPECT_EQ(clean_left.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_NE(own_->DeviceSlot(ranges_[0]), SlotId());
  copies_.release.count_down();
  AwaitAbsence(ranges_[0]);
  clean_left.get();
  EXPECT_TRUE(executor.active());
  executor.Stop();
}

}  // namespace
}  // namespace gemini::client
