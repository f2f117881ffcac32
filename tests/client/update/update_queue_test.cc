// SPDX-License-Identifier: Apache-2.0
#include "client/update/update_queue.h"

#include <atomic>
#include <latch>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gemini/system/status_macros.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::ElementsAre;

class UpdateQueueTest : public SessionFixture {
 protected:
  static constexpr int64_t kBundles = 4;
  void SetUp() override {
    OpenSession(/*device_slots=*/4, /*host_slots=*/40, /*nvme_slots=*/0);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", kBundles, 40, 0);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < kBundles; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), ChunkKind::kParam, 0, i));
    }
  }
  absl::Status Begin(int64_t step) {
    Intent intent;
    intent.step = step;
    return store_->updates().Begin(intent, {BundleId(0), BundleId(1), BundleId(2), BundleId(3)});
  }
  // Commits the bundle's update and notes its turn.
  absl::StatusOr<bool> Update(BundleId bundle, int64_t step) {
    auto spare = store_->AcquireSpareForUpdate();
    if (!spare.ok()) return spare.status();
    FillChunk(spare->data(), 10 * step + bundle.value());
    std::pair<ChunkKind, HostChunk> fresh(ChunkKind::kParam, *std::move(spare));
    {
      const std::lock_guard lock(mutex_);
      order_.push_back(bundle.value());
    }
    GEMINI_RETURN_IF_ERROR(store_->Commit(bundle, step, absl::MakeSpan(&fresh, 1)));
    return true;
  }

  ChunkStore* store_ = nullptr;
  std::mutex mutex_;
  std::vector<int64_t> order_;
};

TEST_F(UpdateQueueTest, CommitsAllInOrderStepAfterStep) {
  int64_t step = 0;
  UpdateQueue queue(
      *store_, nullptr, [&](BundleId bundle) { return Update(bundle, step); }, [](auto&) {});
  EXPECT_OK(queue.Finish());  // Nothing to do.
  for (step = 1; step <= 3;) {
    ASSERT_OK(Begin(step));
    queue.Wake();
    ASSERT_OK(queue.Finish());
    EXPECT_THAT(order_, ElementsAre(0, 1, 2, 3));
    order_.clear();
    for (int64_t i = 0; i < kBundles; ++i) EXPECT_EQ(store_->CommittedStep(BundleId(i)), step);
    ++step;
  }
}

TEST_F(UpdateQueueTest, AFailureIsToldOnceAndFinishTriesAgain) {
  bool broken = true;
  std::vector<absl::Status> told;
  UpdateQueue queue(
      *store_, nullptr,
      [&](BundleId bundle) -> absl::StatusOr<bool> {
        if (broken && bundle == BundleId(2)) return absl::UnavailableError("disk");
        return Update(bundle, 1);
      },
      [&](const absl::Status& status) { told.push_back(status); });
  ASSERT_OK(Begin(1));
  queue.Wake();
  EXPECT_THAT(store_->updates().AwaitCommits(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(queue.Finish(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(told.size(), 2u);
  EXPECT_OK(store_->Acquire(ChunkOf(BundleId(1), ChunkKind::kParam)));
  broken = false;
  EXPECT_OK(queue.Finish());
  EXPECT_THAT(order_, ElementsAre(0, 1, 2, 3));
  EXPECT_OK(queue.Finish());
}

TEST_F(UpdateQueueTest, ALateGradientIsBroughtBeforeItsUpdateAndAgainAfterAFailure) {
  std::vector<int64_t> brought;
  bool broken = true;
  UpdateQueue queue(
      *store_,
      [&](BundleId bundle) -> absl::Status {
        EXPECT_EQ(order_.size(), 3u);  // The others go first.
        brought.push_back(bundle.value());
        if (broken) return absl::UnavailableError("disk");
        store_->updates().GradientArrived(bundle);
        return absl::OkStatus();
      },
      [&](BundleId bundle) { return Update(bundle, 1); }, [](auto&) {});
  Intent intent;
  intent.step = 1;
  const std::vector<BundleId> bundles = {BundleId(0), BundleId(1), BundleId(2), BundleId(3)};
  ASSERT_OK(store_->updates().Begin(intent, bundles, {}, {BundleId(1)}));
  queue.Wake();
  EXPECT_THAT(store_->updates().AwaitCommits(), StatusIs(absl::StatusCode::kUnavailable));
  broken = false;
  EXPECT_OK(queue.Finish());
  EXPECT_THAT(order_, ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(brought, ElementsAre(1, 1));
}

TEST_F(UpdateQueueTest, TheTimelineShowsTheUpdatesThatHadSomethingToCompute) {
  UpdateQueue queue(
      *store_, nullptr,
      [&](BundleId bundle) -> absl::StatusOr<bool> {
        if (bundle.value() % 2 == 0) return Update(bundle, 1);
        GEMINI_RETURN_IF_ERROR(store_->Commit(bundle, 1, {}));
        return false;
      },
      [](auto&) {});
  ASSERT_OK(Begin(1));
  queue.Wake();
  ASSERT_OK(queue.Finish());
  std::latch shown(1);  // An event comes behind its commit.
  queue.Later([&] { shown.count_down(); });
  shown.wait();
  std::vector<uint32_t> bundles;
  for (uint64_t number = 1; number <= session_->timeline()->written; ++number) {
    const std::optional<TimelineEvent> event = ReadTimelineEvent(*session_->timeline(), number);
    if (event.has_value() && event->lane == TimelineLane::kUpdate)
      bundles.push_back(event->subject);
  }
  EXPECT_THAT(bundles, ElementsAre(0, 2));
}

TEST_F(UpdateQueueTest, TasksAreDoneWhenNoUpdateIsLeft) {
  std::atomic<int64_t> committed_at_task{-1};
  std::latch task_done(1);
  UpdateQueue queue(
      *store_, nullptr, [&](BundleId bundle) { return Update(bundle, 1); }, [](auto&) {});
  ASSERT_OK(Begin(1));
  queue.Later([&] {
    committed_at_task = static_cast<int64_t>(order_.size());
    task_done.count_down();
  });
  task_done.wait();
  EXPECT_EQ(committed_at_task, kBundles);
}

TEST_F(UpdateQueueTest, TheEndFinishesWhatWasBegun) {
  {
    UpdateQueue queue(
        *store_, nullptr, [&](BundleId bundle) { return Update(bundle, 1); }, [](auto&) {});
    ASSERT_OK(Begin(1));
    queue.Wake();
  }
  for (int64_t i = 0; i < kBundles; ++i) EXPECT_EQ(store_->CommittedStep(BundleId(i)), 1);
  EXPECT_OK(store_->updates().AwaitCommits());
}

}  // namespace
}  // namespace gemini::client
