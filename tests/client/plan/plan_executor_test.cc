// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_executor.h"

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "client/copy/copy_engine_host.h"
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

}  // namespace
}  // namespace gemini::client
