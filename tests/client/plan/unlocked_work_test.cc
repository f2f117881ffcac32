// SPDX-License-Identifier: Apache-2.0
// What other threads do while one plan is left and the next is not yet begun.
#include "client/plan/unlocked_work.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "tests/client/plan/phase_tracker_fixture.h"

namespace gemini::client {
namespace {

// From Hold to LetGo whoever begins a copy to DEVICE waits, as for a HOST slot that is read from
// NVMe.
class HeldCopies : public CopyEngineHost {
 public:
  explicit HeldCopies(TimelineShm* timeline) : CopyEngineHost({0, 0}, timeline) {}
  using CopyEngine::Copy;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after, CopySubject subject) override {
    if (stream == CopyStream::kFetch) {
      MutexLock lock(mutex_);
      if (is_held_) ++num_waiting_;
      changed_.notify_all();
      while (is_held_) mutex_.WaitFor(changed_);
    }
    return CopyEngineHost::Copy(stream, destination, source, size_bytes, after, subject);
  }
  void Hold() {
    MutexLock lock(mutex_);
    is_held_ = true;
  }
  void AwaitOneWaiting() {
    MutexLock lock(mutex_);
    while (num_waiting_ == 0) mutex_.WaitFor(changed_);
  }
  void LetGo() {
    MutexLock lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  int num_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

class UnlockedWorkTest : public PhaseTrackerTest {
 protected:
  UnlockedWorkTest() {
    make_copies_ = [this](TimelineShm* timeline) {
      auto copies = std::make_unique<HeldCopies>(timeline);
      copies_ = copies.get();
      return copies;
    };
  }
  // Begins a round that follows its plan, with a fetch under way that does not end before LetGo.
  // Returns the thread of its operators, one of which waits for that fetch, or for one behind it.
  std::thread BeginPlannedRoundAndHold() {
    Open(3, /*device_slots=*/4, &plans_);
    for (int round = 0; round < 3; ++round) Step();
    EXPECT_EQ(stats().planned_rounds, 2);
    job_->phases().AwaitPlannedMoves();
    job_->ZeroGradients();
    copies_->Hold();
    std::thread operators([this] { Forward(); });
    copies_->AwaitOneWaiting();
    return operators;
  }
  // An operator of another thread, which the job's own do not see.
  void OtherOperator(TensorUse use) {
    PhaseTracker& phases = job_->phases();
    phases.EndOperator(phases.BeginOperator({&use, 1}, /*gradients_enabled=*/true));
  }

  LocalPlans plans_{kTestChunkBytes};
  HeldCopies* copies_ = nullptr;
};

TEST_F(UnlockedWorkTest, OthersDoNotWaitForTheCopiesOfThePlanThatIsLeft) {
  std::thread operators = BeginPlannedRoundAndHold();
  job_->phases().BeginPhase("other");
  // Whoever begins the round, of these or of the job's operators, leaves the plan and waits. The
  // operators of the others join the round.
  std::atomic<bool> has_one_ended = false;
  std::promise<void> one_ended;
  const auto operate = [&](int32_t tensor) {
    OtherOperator(Param(tensor));
    job_->phases().GradientLeaves(tensor);
    if (!has_one_ended.exchange(true)) one_ended.set_value();
  };
  std::thread first(operate, 0), second(operate, 1);
  EXPECT_EQ(one_ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  copies_->LetGo();
  first.join();
  second.join();
  operators.join();
  job_->phases().EndPhase();
  // The job's own phase follows its plan again.
  const int64_t planned = stats().planned_rounds;
  for (int round = 0; round < 3; ++round) Step();
  EXPECT_GE(stats().planned_rounds, planned + 2);
}

TEST_F(UnlockedWorkTest, AnUpdateIsNoPartOfAnEvaluationThatBeginsWhileItWaits) {
  // The next round's first fetch is held, and no operator waits for it.
  Open(3, /*device_slots=*/4, &plans_);
  for (int round = 0; round < 3; ++round) Step();
  job_->phases().AwaitPlannedMoves();
  job_->ZeroGradients();
  Forward();
  Backward();
  job_->phases().AwaitPlannedMoves();
  copies_->Hold();
  ASSERT_OK(job_->Update());
  copies_->AwaitOneWaiting();
  PhaseTracker& phases = job_->phases();
  const TensorUse use = Param(0);
  std::promise<void> begins, evaluated;
  std::thread updating([&] {
    begins.set_value();
    phases.BeginUpdate(job_->store());
    phases.EndUpdate({0, 1, 2, 3, 4, 5});
  });
  begins.get_future().wait();
  std::thread evaluating([&] {
    for (int i = 0; i < 100; ++i) {
      phases.EndOperator(phases.BeginOperator({&use, 1}, /*gradients_enabled=*/false));
    }
    evaluated.set_value();
  });
  // It does not end if its first operator waits in the place of the update.
  evaluated.get_future().wait_for(std::chrono::milliseconds(200));
  copies_->LetGo();
  updating.join();
  evaluating.join();
  phases.BeginPhase("other");
  phases.EndPhase();
  const absl::StatusOr<Trace> trace = phases.TraceOf("eval");
  EXPECT_TRUE(!trace.ok() || !trace->ends_with_update());
  EXPECT_OK(phases.plan_status());
}

}  // namespace
}  // namespace gemini::client
