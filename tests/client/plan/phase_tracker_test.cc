// SPDX-License-Identifier: Apache-2.0
#include "client/plan/phase_tracker.h"

#include <chrono>
#include <random>

#include "tests/client/plan/phase_tracker_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;
using Use = DeviceBudget::Use;

constexpr int64_t kChunk = kTestChunkBytes;

TEST_F(PhaseTrackerTest, RecordsTheRoundAndFollowsItsPlan) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/8, &plans);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 5; ++round) {
    Step();
    if (HasFatalFailure()) return;
  }
  EXPECT_OK(job_->phases().plan_status());
  EXPECT_EQ(stats().rounds, 5);
  EXPECT_EQ(stats().planned_rounds, 4);
  EXPECT_EQ(all_divergences(), 0);
  EXPECT_EQ(plans.made(), 2);  // Again with the times of three rounds that followed the first.
  ASSERT_OK_AND_ASSIGN(const Trace trace, job_->phases().TraceOf("train"));
  ASSERT_OK(CheckTrace(trace));
  EXPECT_EQ(trace.num_positions(), 4 * 6 + 1);
  EXPECT_EQ(trace.updated.size(), 12u);
  EXPECT_EQ(trace.gradient_outs.size(), 12u);
  // The first gradient leaves in the interval of its operator.
  EXPECT_EQ(trace.gradient_outs[0], (GradientOut{.position = 12, .tensor = 11}));
  EXPECT_EQ(trace.uses_of(3)[0], Param(3));
}

// Such as slow copies that have become fast.
TEST_F(PhaseTrackerTest, WhatRoundsMeasuredBeforeAnEpochIsMeasuredAgain) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/8, &plans);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 8 && !HasFatalFailure(); ++round) Step();
  EXPECT_EQ(plans.made(), 2);
  // Of which a slow one counts for an eighth, and for more than it should.
  Forward();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(4000);
  while (std::chrono::steady_clock::now() < end) {  // The work of an operator.
  }
  Backward();
  plans.NextEpoch();
  ASSERT_OK(job_->Update());
  for (int round = 0; round < 3 && !HasFatalFailure(); ++round) Step();
  EXPECT_EQ(plans.made(), 2);
  for (int round = 0; round < 8 && !HasFatalFailure(); ++round) Step();
  EXPECT_EQ(plans.made(), 3);
  EXPECT_EQ(all_divergences(), 0);
  ASSERT_OK_AND_ASSIGN(const Plan plan, job_->phases().PlanOf("train"));
  EXPECT_LT(plan.prediction.compute_ns, 100'000'000);
}

// The recorded round waits for memory and for what is fetched on demand: its times are no measure.
TEST_F(PhaseTrackerTest, TimesAreThoseOfRoundsThatFollowedThePlan) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/8, &plans);
  if (HasFatalFailure()) return;
  Forward();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (std::chrono::steady_clock::now() < end) {  // The work of an operator.
  }
  Backward();
  ASSERT_OK(job_->Update());
  ASSERT_OK_AND_ASSIGN(const Trace slow, job_->phases().TraceOf("train"));
  const auto compute_ns = [](const Trace& trace) {
    int64_t sum = 0;
    for (const TracedOperator& op : trace.operators) sum += op.compute_ns;
    return sum;
  };
  EXPECT_GT(compute_ns(slow), 200'000'000);
  for (int round = 0; round < 4; ++round) {
    Step();
    if (HasFatalFailure()) return;
  }
  ASSERT_OK_AND_ASSIGN(const Trace trace, job_->phases().TraceOf("train"));
  EXPECT_LT(compute_ns(trace), 100'000'000);
  ASSERT_OK_AND_ASSIGN(const Plan plan, job_->phases().PlanOf("train"));
  EXPECT_LT(plan.prediction.compute_ns, 100'000'000);
}

TEST_F(PhaseTrackerTest, PlannedRoundsMoveExactlyThePredictedBytes) {
  for (const int64_t device_slots : {4, 8, 12, 20}) {
    SCOPED_TRACE(device_slots);
    FollowsExactly(device_slots, {});
    if (HasFatalFailure()) return;
  }
}

TEST_F(PhaseTrackerTest, GradientsThatOperatorsWriteAreWrittenBackAsPlanned) {
  LocalPlans plans(kChunk);
  Open(5, /*device_slots=*/7, &plans);
  if (HasFatalFailure()) return;
  const auto accumulate = [&] {
    Forward();
    Backward();
    Forward();
    for (int32_t i = num_layers_ - 1; i >= 0; --i) {
      ASSERT_OK(job_->Operator({Param(2 * i)}));
      ASSERT_OK(job_->Operator({Grad(2 * i, /*written=*/true)}));
    }
    ASSERT_OK(job_->Update());
  };
  for (int round = 0; round < 3; ++round) {
    accumulate();
    if (HasFatalFailure()) return;
  }
  ASSERT_OK_AND_ASSIGN(const Plan plan, job_->phases().PlanOf("train"));
  job_->phases().AwaitPlannedMoves();
  const ResidencyStats before = session_->residency().stats();
  accumulate();
  if (HasFatalFailure()) return;
  job_->phases().AwaitPlannedMoves();
  const ResidencyStats now = session_->residency().stats();
  EXPECT_EQ(now.fetch_bytes - before.fetch_bytes, plan.prediction.fetch_bytes);
  EXPECT_EQ(now.evict_bytes - before.evict_bytes, plan.prediction.evict_bytes);
  EXPECT_EQ(all_divergences(), 0);
}

TEST_F(PhaseTrackerTest, EvaluationBetweenStepsShiftsNothing) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/8, &plans);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 9; ++round) {
    Step();
    if (round % 3 == 1) Forward(/*gradients_enabled=*/false);  // Told by its operators.
    if (round % 3 == 2) {
      job_->phases().BeginPhase("validation");
      Forward(/*gradients_enabled=*/false);
      job_->phases().EndPhase();
    }
    if (HasFatalFailure()) return;
  }
  for (size_t i = 0; i < kNumDivergences; ++i) EXPECT_EQ(stats().divergences[i], 0) << i;
  EXPECT_EQ(plans.made(),
            4);  // Training's twice: with the times of rounds that followed the first.
  EXPECT_EQ(stats().rounds, 9 + 3 + 3);
  EXPECT_EQ(stats().planned_rounds, stats().rounds - 3);
  for (const char* phase : {"train", "eval", "validation"}) EXPECT_OK(job_->phases().PlanOf(phase));
}

TEST_F(PhaseTrackerTest, ARoundThatDoesNotEndIsNotRecordedForEver) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/8, &plans);
  if (HasFatalFailure()) return;
  Step();
  if (HasFatalFailure()) return;
  // Of a record of more than 64 MiB.
  const std::vector<TensorUse> uses(500, Param(0));
  const size_t bytes_of_operator = sizeof(TracedOperator) + uses.size() * sizeof(TensorUse);
  for (size_t bytes = 0; bytes <= size_t{65} << 20; bytes += bytes_of_operator) {
    ASSERT_OK(job_->Operator(uses, /*gradients_enabled=*/false));
  }
  // The next step ends the evaluation, of which nothing is kept, and follows its plan as ever.
  Step();
  if (HasFatalFailure()) return;
  EXPECT_FALSE(job_->phases().TraceOf("eval").ok());
  EXPECT_EQ(stats().rounds, 2);
  EXPECT_EQ(stats().planned_rounds, 1);
  EXPECT_EQ(all_divergences(), 0);
  // An evaluation of a usual length is planned.
  for (int round = 0; round < 3 && !HasFatalFailure(); ++round) {
    Forward(/*gradients_enabled=*/false);
    Step();
  }
  EXPECT_OK(job_->phases().TraceOf("eval"));
  EXPECT_EQ(stats().rounds, 8);
  EXPECT_EQ(stats().planned_rounds, 6);
}

TEST_F(PhaseTrackerTest, AnotherOperatorEndsThePlanAndIsLearnt) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/8, &plans);
  if (HasFatalFailure()) return;
  Step();
  Step();
  EXPECT_EQ(stats().planned_rounds, 1);
  const auto other = [&] {
    Forward();
    ASSERT_OK(job_->Operator({Param(0), Param(11)}));
    Backward();
    ASSERT_OK(job_->Update());
  };
  other();
  if (HasFatalFailure()) return;
  EXPECT_EQ(divergences(Divergence::kOperator), 1);
  EXPECT_EQ(stats().planned_rounds, 1);
  other();
  EXPECT_EQ(stats().planned_rounds, 2);
  ASSERT_OK_AND_ASSIGN(const Trace trace, job_->phases().TraceOf("train"));
  EXPECT_EQ(trace.num_positions(), 4 * 6 + 2);
  // A round that ends early is another one, too.
  Forward();
  ASSERT_OK(job_->Update());
  EXPECT_EQ(divergences(Divergence::kOperator), 2);
}

TEST_F(PhaseTrackerTest, AStepThatIsNotTakenLeavesTheTraceAsItIs) {
  LocalPlans plans(kChunk);
  Open(3, /*device_slots=*/6, &plans);
  if (HasFatalFailure()) return;
  Step();
  Forward();
  Backward();
  job_->phases().BeginUpdate(job_->store());
  job_->phases().EndUpdate({});
  ASSERT_OK_AND_ASSIGN(const Trace trace, job_->phases().TraceOf("train"));
  EXPECT_TRUE(trace.ends_with_update());
  Step();
  EXPECT_EQ(stats().planned_rounds, 1);
}

TEST_F(PhaseTrackerTest, ATraceOfAnEarlierJobStartsWithAPlan) {
  LocalPlans plans(kChunk);
  Open(4, /*device_slots=*/6, &plans);
  if (HasFatalFailure()) return;
  Step();
  ASSERT_OK_AND_ASSIGN(Trace trace, job_->phases().TraceOf("train"));
  job_.reset();
  session_.reset();
  LocalPlans later(kChunk);
  later.Keep(std::move(trace));
  Open(4, /*device_slots=*/6, &later);
  if (HasFatalFailure()) return;
  Step();
  EXPECT_EQ(stats().planned_rounds, 1);
}

TEST_F(PhaseTrackerTest, WithoutAPlanTheJobRunsOnlineAndSaysWhy) {
  class NoPlans : public PlanSource {
   public:
    absl::StatusOr<Plan> MakePlan(const Trace&, int64_t) override {
      ++asked;
      return absl::ResourceExhaustedError("operator 3 needs 12 KiB");
    }
    int asked = 0;

   private:
    absl::StatusOr<std::optional<Trace>> FindTrace(const std::string&,
                                                   const std::vector<TracedTensor>&) override {
      return std::optional<Trace>();
    }
  } plans;
  Open(3, /*device_slots=*/6, &plans);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 100; ++round) Step();
  EXPECT_EQ(stats().rounds, 100);
  EXPECT_EQ(stats().planned_rounds, 0);
  // Again after 1, 2, 4 rounds and so on: what was refused once is refused again, most likely.
  EXPECT_GE(plans.asked, 4);
  EXPECT_LE(plans.asked, 10);
  EXPECT_THAT(job_->phases().plan_status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("operator 3")));
}

TEST_F(PhaseTrackerTest, APlanThatDoesNotFitTheJobIsRefused) {
  class Meddling : public LocalPlans {
   public:
    using LocalPlans::LocalPlans;
    absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) override {
      auto plan = LocalPlans::MakePlan(trace, device_bytes);
      meddle(*plan);
      return plan;
    }
    std::function<void(Plan&)> meddle;
  };
  const std::vector<std::function<void(Plan&)>> meddlings = {
      [](Plan& plan) { plan.ranges[0].space = 7; },
      [](Plan& plan) { plan.ranges[0].first = BundleId(1'000'000); },
      [](Plan& plan) { plan.ranges[0].num_bundles = 2; },
      [](Plan& plan) { plan.fingerprint ^= 1; },
      [](Plan& plan) { plan.chunk_bytes *= 2; },
      [](Plan& plan) { plan.device_bytes *= 2; },
      [](Plan& plan) { plan.fetches[0].slot = SlotId(1 << 20); },
      [](Plan& plan) { plan.fetches.pop_back(); },
  };
  for (size_t i = 0; i < meddlings.size(); ++i) {
    SCOPED_TRACE(i);
    job_.reset();
    session_.reset();
    Meddling plans(kChunk);
    plans.meddle = meddlings[i];
    Open(4, /*device_slots=*/6, &plans);
    if (HasFatalFailure()) return;
    Step();
    Step();
    if (HasFatalFailure()) return;
    EXPECT_EQ(stats().planned_rounds, 0);
    EXPECT_FALSE(job_->phases().plan_status().ok());
    EXPECT_EQ(plans.made(), 1);
  }
}

TEST_F(PhaseTrackerTest, NonModelDataAboveTheTraceEndsThePlanAndIsPlannedFor) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/10, &plans);
  if (HasFatalFailure()) return;
  int64_t held = 0;
  const auto step = [&](int64_t non_model_bytes) {
    Forward();
    while (!session_->device_budget().TryCharge(Use::kNonModel, non_model_bytes)) {
      ASSERT_TRUE(session_->residency().MakeRoom(non_model_bytes));
    }
    held = non_model_bytes;
    Backward();
    session_->device_budget().Release(Use::kNonModel, held);
    ASSERT_OK(job_->Update());
  };
  step(3 * kChunk);
  step(3 * kChunk);
  if (HasFatalFailure()) return;
  EXPECT_EQ(stats().planned_rounds, 1);
  step(5 * kChunk);
  if (HasFatalFailure()) return;
  EXPECT_EQ(divergences(Divergence::kNonModel), 1);
  step(5 * kChunk);
  EXPECT_EQ(divergences(Divergence::kNonModel), 1);
  EXPECT_EQ(stats().planned_rounds, 2);
  EXPECT_LE(session_->device_budget().peak_bytes(), session_->device_budget().budget_bytes());
}

TEST_F(PhaseTrackerTest, AnotherBudgetInTheMiddleOfARoundEndsThePlanAndIsPlannedFor) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/12, &plans);
  if (HasFatalFailure()) return;
  Step();
  Step();
  Forward();
  ASSERT_OK(session_->residency().SetBudget(7 * kChunk));
  Backward();
  ASSERT_OK(job_->Update());
  EXPECT_EQ(divergences(Divergence::kBudget), 1);
  Step();
  EXPECT_EQ(stats().planned_rounds, 2);
  ASSERT_OK_AND_ASSIGN(Plan plan, job_->phases().PlanOf("train"));
  EXPECT_EQ(plan.device_bytes, 7 * kChunk);
  EXPECT_LE(session_->device_budget().used_bytes(), 7 * kChunk);
  // A larger one waits for the round's end.
  Forward();
  ASSERT_OK(session_->residency().SetBudget(12 * kChunk));
  Backward();
  ASSERT_OK(job_->Update());
  EXPECT_EQ(stats().planned_rounds, 3);
  Step();
  ASSERT_OK_AND_ASSIGN(plan, job_->phases().PlanOf("train"));
  EXPECT_EQ(plan.device_bytes, 12 * kChunk);
  EXPECT_EQ(stats().planned_rounds, 4);
  EXPECT_EQ(all_divergences(), 1);
}

TEST_F(PhaseTrackerTest, APinnedChunkThatShouldLeaveEndsThePlan) {
  LocalPlans plans(kChunk);
  Open(6, /*device_slots=*/9, &plans);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 2; ++round) Step();
  const RangeId range = job_->RangeOf(Param(0));  // As a scoped fetch does.
  std::byte* address = nullptr;
  ASSERT_OK(session_->residency().Pin({&range, 1}, {&address, 1}));
  Forward();
  Backward();
  session_->residency().Unpin(range, false);
  ASSERT_OK(job_->Update());
  EXPECT_EQ(stats().planned_rounds + divergences(Divergence::kPinned), 2);
  Step();
  EXPECT_EQ(stats().rounds, 4);
}

// Contents, budgets and ends: whatever happens to a plan.
TEST_F(PhaseTrackerTest, PlacementInvariance) {
  int64_t planned = 0, left = 0, on_device = 0, late = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    job_.reset();
    session_.reset();
    // Tensors of all groups and sizes: several in a chunk, and some that span.
    std::vector<TracedTensor> tensors;
    const size_t num_tensors = 6 + random() % 14;
    for (size_t i = 0; i < num_tensors; ++i) {
      constexpr std::array<int64_t, 5> kSizes = {256, 1024, kChunk, kChunk + 512, 3 * kChunk};
      const uint64_t dice = random() % 8;
      tensors.push_back({.size_bytes = kSizes[random() % kSizes.size()],
                         .group = dice < 6    ? TensorGroup::kTrainable
                                  : dice == 6 ? TensorGroup::kFrozen
                                              : TensorGroup::kBuffer});
    }
    // Three pinned at once, each up to three chunks, and non-model data of three.
    const int64_t device_slots = 12 + static_cast<int64_t>(random() % 16);
    const bool on_nvme = random() % 3 == 0;
    const int64_t all_slots = 4 * 4 * static_cast<int64_t>(num_tensors);
    const int64_t host_slots = on_nvme ? 30 : all_slots + 30;
    const int64_t nvme_slots = on_nvme ? all_slots : 0;
    OpenSession(device_slots, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    LocalPlans plans(kChunk);
    if (seed % 3 != 0) {
      plans.set_policy({.kind = PolicyKind::kStatic,
                        .param_fraction = static_cast<double>(random() % 2) * 0.1,
                        .optimizer_fraction = static_cast<double>(random() % 5) * 0.1});
    } else {
      // So slow a link that gradients had better leave late.
      plans.set_costs({.host_to_device = 20e6, .device_to_host = 20e6});
    }
    job_.emplace(*session_, tensors, &plans, host_slots, nvme_slots);
    struct Op {
      std::vector<TensorUse> uses;
      int64_t non_model_bytes = 0;
      std::vector<int32_t> gradients;
    };
    const auto make_ops = [&](bool trains) {
      std::vector<Op> ops(10 + random() % 30);
      for (Op& op : ops) {
        for (uint64_t i = 0; i < 1 + random() % 3; ++i) {
          const auto tensor = static_cast<int32_t>(random() % num_tensors);
          op.uses.push_back(Param(tensor, tensors[tensor].group == TensorGroup::kBuffer));
        }
        op.non_model_bytes = static_cast<int64_t>(random() % (2 * kChunk));
      }
      for (size_t tensor = 0; trains && tensor < num_tensors; ++tensor) {
        if (!job_->trainable(tensor) || random() % 8 == 0) continue;
        const size_t at = ops.size() / 2 + random() % (ops.size() / 2);
        ops[at].gradients.push_back(static_cast<int32_t>(tensor));
        for (size_t later = at + 1; later < ops.size(); ++later) {
          if (random() % 8 == 0) {
            ops[later].uses.push_back(Grad(static_cast<int32_t>(tensor), random() % 2 == 0));
            break;
          }
        }
      }
      return ops;
    };
    const auto run = [&](const std::vector<Op>& ops, bool gradients_enabled,
                         int64_t growth_percent) {
      for (const Op& op : ops) {
        std::vector<TensorUse> uses = op.uses;
        if (uses.size() > 3) uses.resize(3);
        ASSERT_OK(job_->Operator(uses, gradients_enabled));
        const int64_t bytes = op.non_model_bytes * growth_percent / 100;
        while (!session_->device_budget().TryCharge(Use::kNonModel, bytes)) {
          ASSERT_TRUE(session_->residency().MakeRoom(bytes));
        }
        for (const int32_t tensor : op.gradients) ASSERT_OK(job_->Gradient(tensor));
        ASSERT_LE(session_->device_budget().used_bytes(), session_->device_budget().budget_bytes());
        session_->device_budget().Release(Use::kNonModel, bytes);
      }
    };
    const std::vector<Op> train = make_ops(true), eval = make_ops(false), other = make_ops(true);
    for (int round = 0; round < 14; ++round) {
      const uint64_t dice = random() % 10;
      const int64_t growth = random() % 5 == 0 ? 130 : 100;
      job_->phases().TESTING_ONLY_LeavePlanAt(static_cast<int32_t>(random() % 400));
      if (dice < 7) {
        run(train, true, growth);
        if (HasFatalFailure()) return;
        ASSERT_OK(job_->Update());
        if (random() % 4 != 0) job_->ZeroGradients();
      } else if (dice == 7) {
        job_->phases().BeginPhase("other");
        run(other, true, growth);
        if (HasFatalFailure()) return;
        job_->phases().EndPhase();
      } else {
        run(eval, false, growth);
      }
      if (HasFatalFailure()) return;
      if (random() % 6 == 0) session_->residency().MakeRoom(device_slots * kChunk);
      if (random() % 4 == 0) {
        ASSERT_OK(job_->FinishUpdates());
      }
    }
    EXPECT_LE(session_->device_budget().peak_bytes(), session_->device_budget().budget_bytes());
    planned += stats().planned_rounds;
    on_device += job_->updates_on_device();
    late += job_->late_gradients();
    left += all_divergences();
    ASSERT_OK(job_->FinishUpdates());
    for (const SeenChunk& chunk : Look("job")) ASSERT_FALSE(chunk.invalid);
  }
  // The test is of plans that are followed, and of plans that are left.
  EXPECT_GT(planned, 100);
  EXPECT_GT(left, 10);
  EXPECT_GT(on_device, 50);
  EXPECT_GT(late, 10);
}

TEST_F(PhaseTrackerTest, AReadThatFailsInTheMiddleOfAPlanIsTheOperatorsError) {
  OpenSession(/*device_slots=*/6, /*host_slots=*/24, /*nvme_slots=*/100);
  if (HasFatalFailure()) return;
  num_layers_ = 10;
  std::vector<TracedTensor> tensors(20, TracedTensor{.size_bytes = kChunk});
  LocalPlans plans(kChunk);
  job_.emplace(*session_, tensors, &plans, 24, 100);
  for (int round = 0; round < 2; ++round) Step();
  if (HasFatalFailure()) return;
  EXPECT_EQ(stats().planned_rounds, 1);
  ASSERT_OK(job_->FinishUpdates());
  server_.reset();
  absl::Status status;
  // The chunks are more than HOST holds: some must be read.
  for (int32_t i = 0; i < 20 && status.ok(); ++i) status = job_->Operator({Param(i)});
  for (int32_t i = 0; i < 20 && status.ok(); ++i) status = job_->Operator({Grad(i)});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LE(session_->device_budget().used_bytes(), session_->device_budget().budget_bytes());
}

}  // namespace
}  // namespace gemini::client
