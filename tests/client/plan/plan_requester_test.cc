// SPDX-License-Identifier: Apache-2.0
// What other threads do while a round waits for its plan.
#include "client/plan/plan_requester.h"

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "tests/client/plan/phase_tracker_fixture.h"

namespace gemini::client {
namespace {

// The first plan is given when the test says so.
class SlowPlans : public LocalPlans {
 public:
  using LocalPlans::LocalPlans;
  absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) override {
    if (made() == 0) {
      asked_.set_value();
      answer_.get_future().wait();
    }
    return LocalPlans::MakePlan(trace, device_bytes);
  }
  absl::StatusOr<std::optional<Trace>> FindTrace(
      const std::string& phase, const std::vector<TracedTensor>& tensors) override {
    ++looked_up_;
    return LocalPlans::FindTrace(phase, tensors);
  }
  void AwaitAsked() { asked_.get_future().wait(); }
  void Answer() { answer_.set_value(); }
  int looked_up() const { return looked_up_; }

 private:
  std::promise<void> asked_, answer_;
  std::atomic<int> looked_up_{0};
};

class PlanRequesterTest : public PhaseTrackerTest {
 protected:
  // Opens a job and records a round. Returns a thread whose operator begins the next one, when it
  // has asked for a plan.
  std::thread RecordRoundAndAsk(TensorUse use) {
    Open(3, /*device_slots=*/8, &plans_);
    Step();
    EXPECT_EQ(plans_.looked_up(), 1);
    job_->ZeroGradients();
    std::thread asking([this, use] { EXPECT_OK(job_->Operator({use})); });
    plans_.AwaitAsked();
    return asking;
  }
  // An operator of another thread, which the job's own do not see.
  void OtherOperator(TensorUse use) {
    PhaseTracker& phases = job_->phases();
    phases.EndOperator(phases.BeginOperator({&use, 1}, /*gradients_enabled=*/true));
  }
  // The rest of a step whose first operators have begun.
  void RestOfStep(int32_t first) {
    for (int32_t tensor = first; tensor < 2 * num_layers_; ++tensor) {
      ASSERT_OK(job_->Operator({Param(tensor)}));
    }
    Backward();
    if (HasFatalFailure()) return;
    ASSERT_OK(job_->Update());
  }

  SlowPlans plans_{kTestChunkBytes};
};

TEST_F(PlanRequesterTest, AnOperatorOfAnotherThreadDoesNotWaitForThePlan) {
  std::thread asking = RecordRoundAndAsk(Param(1));
  std::promise<void> ended;
  std::thread other([&] {
    job_->phases().GradientLeaves(0);  // Before the round's first operator: it is no part of it.
    OtherOperator(Param(0));
    ended.set_value();
  });
  EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  plans_.Answer();
  other.join();
  asking.join();
  // The round has begun without its plan, which is the next one's.
  RestOfStep(2);
  EXPECT_OK(job_->phases().plan_status());
  EXPECT_EQ(stats().planned_rounds, 0);
  Step();
  EXPECT_EQ(stats().planned_rounds, 1);
  EXPECT_EQ(plans_.made(), 1);
  EXPECT_EQ(all_divergences(), 0);
}

TEST_F(PlanRequesterTest, APlanOfOperatorsThatHaveChangedMeanwhileIsDropped) {
  std::thread asking = RecordRoundAndAsk(Param(2));
  OtherOperator(Param(5));
  job_->phases().BeginPhase("other");  // Ends the round, whose trace has no update and is not kept.
  job_->phases().EndPhase();
  OtherOperator(Param(5));
  std::vector<int32_t> updated;
  for (int32_t tensor = 0; tensor < 2 * num_layers_; ++tensor) updated.push_back(tensor);
  job_->phases().BeginUpdate(job_->store());
  job_->phases().EndUpdate(updated);  // Ends one that has: it is the phase's trace now.
  plans_.Answer();
  asking.join();
  // The round of the one that asked has the plan that fits the new trace, made for it.
  EXPECT_EQ(plans_.made(), 2);
  RestOfStep(3);
  EXPECT_EQ(divergences(Divergence::kOperator), 1);
  EXPECT_EQ(stats().rounds, 4);
}

TEST_F(PlanRequesterTest, AnUpdateMeanwhileTakesThePlaceOfTheRound) {
  std::thread asking = RecordRoundAndAsk(Param(0));
  job_->phases().BeginUpdate(job_->store());
  job_->phases().EndUpdate({});
  EXPECT_EQ(stats().rounds, 2);
  plans_.Answer();
  asking.join();
  // Its operator is the first of another round, with the plan.
  RestOfStep(1);
  EXPECT_EQ(stats().rounds, 3);
  EXPECT_EQ(stats().planned_rounds, 1);
  EXPECT_EQ(plans_.made(), 1);
  EXPECT_EQ(all_divergences(), 0);
}

TEST_F(PlanRequesterTest, ARoundThatBeginsMeanwhileDoesNotAsk) {
  std::thread asking = RecordRoundAndAsk(Param(0));
  job_->phases().BeginPhase("other");
  OtherOperator(Param(3));
  job_->phases().EndPhase();
  EXPECT_EQ(plans_.looked_up(), 1);
  EXPECT_EQ(stats().rounds, 2);
  plans_.Answer();
  asking.join();
  RestOfStep(1);
  EXPECT_EQ(stats().planned_rounds, 1);
  // Nobody asks meanwhile now.
  job_->phases().BeginPhase("other");
  OtherOperator(Param(3));
  job_->phases().EndPhase();
  EXPECT_EQ(plans_.made(), 2);
}

TEST_F(PlanRequesterTest, TensorsThatAreAddedMeanwhileBeginAnew) {
  std::thread asking = RecordRoundAndAsk(Param(0));
  std::thread adding([this] {
    const TracedTensor tensor = {.size_bytes = 256};
    EXPECT_EQ(job_->phases().AddTensors(job_->store(), {&tensor, 1}), 2 * num_layers_);
  });
  plans_.Answer();
  adding.join();
  asking.join();
  job_->phases().EndPhase();
  EXPECT_THAT(job_->phases().PlanOf("train"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace gemini::client
