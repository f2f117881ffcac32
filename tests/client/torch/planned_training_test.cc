// SPDX-License-Identifier: Apache-2.0
// Training that follows plans: its rounds are recognised, and its bits are those of plain training,
// also when it leaves its plan at operators drawn at random, and with evaluation between steps.
#include <random>

#include "client/plan/phase_tracker.h"
#include "client/torch/model/build_scope.h"
#include "tests/client/torch/training_fixture.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"

namespace gemini::client::hooks {
namespace {

constexpr int64_t kWidth = 64;
constexpr int kLayers = 12;
constexpr double kMaxNorm = 1.0;

// A residual stack whose layers are used forward and then backward.
struct Stack : torch::nn::Module {
  explicit Stack(int64_t inner = 4 * kWidth) {
    for (int i = 0; i < kLayers; ++i) {
      in.push_back(register_module("in" + std::to_string(i), torch::nn::Linear(kWidth, inner)));
      out.push_back(register_module("out" + std::to_string(i), torch::nn::Linear(inner, kWidth)));
    }
  }
  at::Tensor Loss(int64_t seed, int64_t batch = 8) {
    torch::manual_seed(seed);
    at::Tensor x = torch::randn({batch, kWidth}).to(in[0]->weight.scalar_type());
    for (int i = 0; i < kLayers; ++i) x = x + out[i]->forward(in[i]->forward(x).tanh());
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> in, out;
};

struct PlannedRun {
  int steps = 8;
  int accumulate = 1;
  bool evaluate = false;     // After every third step.
  bool short_batch = false;  // In every fourth.
  int leave_one_in = 0;      // Positions, at one of which a round leaves its plan; 0: never.
  bool reads_gradients = false;
};

class PlannedTrainingTest : public TrainingTest {
 protected:
  // A quarter of the parameters' 1.6 MB, and what a step computes with.
  static TrainingOptions TightOptions() {
    TrainingOptions options = SmallOptions();
    options.device_memory = 1 * kMiB;
    return options;
  }

  // Trains a plain model, then a managed one in the session, and compares losses and parameters.
  // Gives the session's statistics at the end.
  void Train(const TrainingOptions& options, const PlannedRun& run, TrainingStats& stats) {
    OptimizerSpec spec;
    spec.learning_rate = 0.01;
    torch::manual_seed(7);
    Stack reference;
    std::vector<float> expected;
    std::vector<ReferenceAdamW::State> moments;
    {
      // Before the session opens: its allocations are not charged.
      ReferenceAdamW optimizer(reference.parameters(), spec);
      RunSteps(reference, run, expected, [&optimizer] { optimizer.Step(kMaxNorm); });
      if (HasFatalFailure()) return;
      moments = optimizer.states();
      reference.zero_grad();
    }
    torch::manual_seed(7);
    Stack managed;
    Open(options);
    if (HasFatalFailure()) return;
    ManagedModel* const model = Manage(managed, spec);
    ASSERT_NE(model, nullptr);
    std::mt19937_64 random(1);
    std::vector<float> losses;
    RunSteps(managed, run, losses, [&] {
      StepOptions step_options;
      step_options.max_grad_norm = kMaxNorm;
      ASSERT_OK(model->Step(step_options));
      if (run.leave_one_in == 0) return;
      session_->phases().TESTING_ONLY_LeavePlanAt(
          static_cast<int32_t>(random() % run.leave_one_in));
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(losses, expected);
    EXPECT_OK(session_->phases().plan_status());
    stats = session_->stats();
    size_t index = 0;
    for (const auto& item : reference.named_parameters()) {
      EXPECT_TRUE(managed.named_parameters()[item.key()].equal(item.value())) << item.key();
      EXPECT_EQ(ReadAll(*model, item.key(), ChunkKind::kExpAvg), moments[index].exp_avg);
      EXPECT_EQ(ReadAll(*model, item.key(), ChunkKind::kExpAvgSq), moments[index].exp_avg_sq);
      ++index;
    }
    const absl::StatusOr<Plan> plan = session_->phases().PlanOf("train");
    updates_on_device_ = plan.ok() ? static_cast<int64_t>(plan->device_updates.size()) : 0;
    EXPECT_OK(session_->status());
    EXPECT_LE(session_->stats().device_peak_bytes, session_->stats().device_budget_bytes);
  }

  static void RunSteps(Stack& model, const PlannedRun& run, std::vector<float>& losses,
                       const std::function<void()>& update) {
    for (int step = 0; step < run.steps; ++step) {
      const int64_t batch = run.short_batch && step % 4 == 3 ? 5 : 8;
      model.zero_grad();
      for (int micro = 0; micro < run.accumulate; ++micro) {
        const at::Tensor loss = model.Loss(10 * step + micro, batch);
        loss.backward();
        losses.push_back(loss.item<float>());
      }
      update();
      if (HasFatalFailure()) return;
      // What an update on DEVICE has used is still the user's.
      if (run.reads_gradients) losses.push_back(model.in[0]->weight.grad().norm().item<float>());
      if (run.evaluate && step % 3 == 2) {
        const at::NoGradGuard no_grad;
        losses.push_back(model.Loss(1000 + step).item<float>());
      }
    }
  }
  // Bundles, since the call before, or, the first time, since the session's beginning.
  int64_t UpdatesOnDevice(bool first) {
    const TimelineShm& timeline = *session_->session().timeline();
    if (first) seen_events_ = 0;
    int64_t updates = 0;
    while (seen_events_ < timeline.written) {
      const std::optional<TimelineEvent> event = ReadTimelineEvent(timeline, ++seen_events_);
      updates += event && event->lane == TimelineLane::kDeviceUpdate;
    }
    return updates;
  }
  uint64_t seen_events_ = 0;
  int64_t updates_on_device_ = 0;  // Ranges, of the last plan.
  static int64_t Divergences(const TrainingStats& stats) {
    int64_t sum = 0;
    for (const int64_t count : stats.phases.divergences) sum += count;
    return sum;
  }
};

TEST_F(PlannedTrainingTest, FollowsItsPlanFromTheSecondStepOn) {
  TrainingStats stats;
  Train(TightOptions(), {.steps = 8}, stats);
  EXPECT_EQ(stats.phases.rounds, 8);
  EXPECT_GE(stats.phases.planned_rounds, 6);
  EXPECT_LE(Divergences(stats), 1);
}

// The matrices span more chunks than Write keeps open, and the vectors share one, to which it comes
// back: behind the last Write that one is still open.
TEST_F(PlannedTrainingTest, BehindLoadingTheFirstRoundFollowsAPlanOfWhatWasForetold) {
  enum class Foretold { kNot, kRight, kWithoutActivations };
  constexpr int64_t kInner = 1024;
  TrainingOptions options = SmallOptions();
  options.device_memory = 2 * kMiB;
  std::vector<std::pair<std::string, std::vector<float>>> values, expected;
  Trace trace;
  for (const Foretold foretold :
       {Foretold::kNot, Foretold::kRight, Foretold::kWithoutActivations}) {
    const bool is_loaded = foretold != Foretold::kNot;
    std::unique_ptr<Stack> stack;
    {
      std::optional<BuildScope> scope;
      if (is_loaded) scope.emplace();
      torch::manual_seed(7);
      stack = std::make_unique<Stack>(kInner);
    }
    session_.reset();
    Open(options);
    if (HasFatalFailure()) return;
    ManagedModel* const model = Manage(*stack);
    ASSERT_NE(model, nullptr);
    if (foretold == Foretold::kWithoutActivations) {
      for (TracedOperator& at : trace.operators) at.non_model_peak_bytes = 0;
    }
    if (is_loaded) session_->phases().Foretell(trace);
    for (const auto& [name, loaded] : values) {
      ASSERT_OK(model->Write(
          name, ChunkKind::kParam, [&loaded](int64_t offset, absl::Span<std::byte> bytes) {
            std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(loaded.data()) + offset,
                        bytes.size());
            return absl::OkStatus();
          }));
    }
    const auto read = [model] {
      decltype(values) all;
      for (const ManagedTensorInfo& info : model->tensors()) {
        all.emplace_back(info.name, ReadAll(*model, info.name));
      }
      return all;
    };
    const auto step = [&] {
      stack->zero_grad();
      // The plan begins with an operator on a matrix.
      const at::Tensor squares = stack->in[0]->weight.square().mean();
      (squares + stack->Loss(1)).backward();
      EXPECT_OK(model->Step({}));
    };
    if (!is_loaded) values = read();
    step();
    EXPECT_EQ(session_->stats().phases.planned_rounds, foretold == Foretold::kRight ? 1 : 0);
    // What operators take leaves too little room for such a plan: the round leaves it once.
    const int64_t left = foretold == Foretold::kWithoutActivations ? 1 : 0;
    EXPECT_EQ(Divergences(session_->stats()), left);
    EXPECT_EQ(session_->stats().phases.divergences[static_cast<int>(Divergence::kNonModel)], left);
    if (!is_loaded) {
      expected = read();
      ASSERT_OK_AND_ASSIGN(trace, session_->phases().TraceOf("train"));
      continue;
    }
    EXPECT_EQ(read(), expected);
    step();
    EXPECT_EQ(session_->stats().phases.planned_rounds, 2 - left);
  }
}

TEST_F(PlannedTrainingTest, AShorterBatchAndEvaluationShiftNothing) {
  TrainingStats stats;
  Train(TightOptions(), {.steps = 12, .evaluate = true, .short_batch = true}, stats);
  EXPECT_EQ(stats.phases.rounds, 12 + 3);  // The last evaluation has not ended.
  EXPECT_GE(stats.phases.planned_rounds, 15 - 2 - 2);
  EXPECT_EQ(stats.phases.divergences[static_cast<size_t>(Divergence::kOperator)], 0);
}

TEST_F(PlannedTrainingTest, AccumulatedGradientsFollowThePlanToo) {
  TrainingStats stats;
  Train(TightOptions(), {.steps = 8, .accumulate = 3}, stats);
  EXPECT_GE(stats.phases.planned_rounds, 6);
}

TEST_F(PlannedTrainingTest, LeavingPlansAtRandomOperatorsChangesNoBits) {
  TrainingStats stats;
  Train(TightOptions(), {.steps = 20, .evaluate = true, .leave_one_in = 100}, stats);
  EXPECT_GT(Divergences(stats), 2);
  EXPECT_GT(stats.phases.planned_rounds, 2);
}

TEST_F(PlannedTrainingTest, PlansWorkFromNvmeAsWell) {
  TrainingOptions options = TightOptions();
  options.host_memory = 3 * kMiB;
  options.nvme_memory = 32 * kMiB;
  TrainingStats stats;
  Train(options, {.steps = 6, .evaluate = true}, stats);
  EXPECT_GT(stats.phases.planned_rounds, 3);
}

TEST_F(PlannedTrainingTest, UpdatesOnDeviceChangeNoBits) {
  TrainingOptions options = TightOptions();
  options.device_memory = 2 * kMiB;
  options.policy = {.kind = PolicyKind::kStatic, .optimizer_fraction = 0.1};
  TrainingStats stats;
  Train(options, {.steps = 12, .evaluate = true, .leave_one_in = 300}, stats);
  EXPECT_GT(stats.phases.planned_rounds, 6);
  EXPECT_GT(updates_on_device_, 0);
  EXPECT_LT(updates_on_device_, 2 * kLayers);
}

// All that is trained, and its moments, on DEVICE for good: nothing but write-backs moves.
TEST_F(PlannedTrainingTest, WhereThereIsRoomAllIsUpdatedOnDevice) {
  TrainingOptions options = TightOptions();
  options.device_memory = 16 * kMiB;
  options.policy.kind = PolicyKind::kCuda;
  TrainingStats stats;
  Train(options, {.steps = 8, .evaluate = true}, stats);
  EXPECT_GE(stats.phases.planned_rounds, 7);
  EXPECT_GE(updates_on_device_, 2 * kLayers);
  ASSERT_OK_AND_ASSIGN(const Plan plan, session_->phases().PlanOf("train"));
  EXPECT_EQ(plan.prediction.fetch_bytes, 0);
}

// Bits are compared with those of updates in HOST, which other tests compare with plain training's.
TEST_F(PlannedTrainingTest, UpdatesOnDeviceChangeNoBitsInAnyFormat) {
  struct Format {
    at::ScalarType type;
    OptimizerKind optimizer;
    PolicyOptions policy = {.kind = PolicyKind::kCuda};
  };
  // Of some tensors on DEVICE, of others in HOST.
  const PolicyOptions half = {.kind = PolicyKind::kStatic, .optimizer_fraction = 0.5};
  for (const Format& format :
       {Format{at::kBFloat16, OptimizerKind::kAdamW}, Format{at::kHalf, OptimizerKind::kAdam},
        Format{at::kBFloat16, OptimizerKind::kSgd}, Format{at::kFloat, OptimizerKind::kSgd},
        Format{at::kBFloat16, OptimizerKind::kLamb, half}, Format{at::kHalf, OptimizerKind::kLamb},
        Format{at::kFloat, OptimizerKind::kLars, half}}) {
    SCOPED_TRACE(absl::StrCat(at::toString(format.type), " ", OptimizerKindName(format.optimizer)));
    OptimizerSpec spec;
    spec.kind = format.optimizer;
    spec.learning_rate = 0.01;
    std::vector<std::vector<float>> values[2];
    std::vector<float> losses[2];
    for (const bool on_device : {false, true}) {
      TrainingOptions options = TightOptions();
      options.device_memory = 16 * kMiB;
      options.chunk_bytes = 16 * kKiB;  // Tensors span several.
      options.policy = on_device ? format.policy : PolicyOptions{.kind = PolicyKind::kCpu};
      torch::manual_seed(7);
      Stack managed;
      managed.to(format.type);
      Open(options);
      if (HasFatalFailure()) return;
      ManagedModel* const model = Manage(managed, spec);
      ASSERT_NE(model, nullptr);
      RunSteps(managed, {.steps = 5, .evaluate = true}, losses[on_device], [model] {
        StepOptions step_options;
        step_options.max_grad_norm = kMaxNorm;
        ASSERT_OK(model->Step(step_options));
      });
      if (HasFatalFailure()) return;
      ASSERT_OK_AND_ASSIGN(const Plan plan, session_->phases().PlanOf("train"));
      EXPECT_EQ(plan.device_updates.empty(), !on_device);
      EXPECT_EQ(UpdatesOnDevice(/*first=*/true) > 0, on_device);
      EXPECT_EQ(plan.updated.empty(), on_device && format.policy.kind == PolicyKind::kCuda);
      EXPECT_GE(session_->stats().phases.planned_rounds, 4);
      for (const auto& item : managed.named_parameters()) {
        for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
          if (kind == ChunkKind::kExpAvgSq && !HasSecondMoment(spec.kind)) continue;
          values[on_device].push_back(ReadAll(*model, item.key(), kind));
        }
      }
      EXPECT_OK(session_->status());
      session_.reset();
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_EQ(values[0], values[1]);
  }
}

// Once, behind steps whose trace has no write: at once after the update on DEVICE, which is not
// written back yet.
TEST_F(PlannedTrainingTest, WhatIsEditedAfterAnUpdateOnDeviceKeepsItsNewValues) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool by_operator : {false, true}) {
      SCOPED_TRACE(absl::StrCat(at::toString(type), by_operator ? " operator" : " fetch"));
      std::vector<std::vector<float>> values[2];
      for (const bool on_device : {false, true}) {
        TrainingOptions options = TightOptions();
        options.device_memory = 16 * kMiB;
        options.policy.kind = on_device ? PolicyKind::kCuda : PolicyKind::kCpu;
        torch::manual_seed(7);
        Stack managed;
        managed.to(type);
        Open(options);
        if (HasFatalFailure()) return;
        ManagedModel* const model = Manage(managed);
        ASSERT_NE(model, nullptr);
        std::vector<int64_t> updates_on_device;  // Bundles, by step.
        for (int step = 0; step < 8; ++step) {
          managed.zero_grad();
          managed.Loss(step).backward();
          ASSERT_OK(model->Step({}));
          updates_on_device.push_back(UpdatesOnDevice(step == 0));
          if (step != 4) continue;
          ASSERT_OK_AND_ASSIGN(const Plan plan, session_->phases().PlanOf("train"));
          EXPECT_EQ(plan.device_updates.empty(), !on_device);
          const at::NoGradGuard no_grad;
          const at::Tensor weight = managed.in[1]->weight;
          if (by_operator) {
            weight.narrow(0, 3, 2).fill_(0.25);
          } else {
            ASSERT_OK_AND_ASSIGN(const ScopedFetch fetch,
                                 model->Fetch(weight, FetchAccess::kReadWrite));
            std::memset(fetch.data(), 0, static_cast<size_t>(kWidth * weight.itemsize()));
          }
          values[on_device].push_back(ReadAll(*model, "in1.weight"));
        }
        // What was edited is updated in HOST once, of 16 bits.
        EXPECT_EQ(updates_on_device[5] < updates_on_device[4], on_device && type != at::kFloat);
        EXPECT_EQ(updates_on_device[7], updates_on_device[4]);
        for (const auto& item : managed.named_parameters()) {
          values[on_device].push_back(ReadAll(*model, item.key()));
        }
        EXPECT_OK(session_->status());
        session_.reset();
      }
      EXPECT_EQ(values[0], values[1]);
    }
  }
}

TEST_F(PlannedTrainingTest, GradientsAreReadableAfterAnUpdateOnDevice) {
  TrainingOptions options = TightOptions();
  options.device_memory = 16 * kMiB;
  options.policy.kind = PolicyKind::kCuda;
  TrainingStats stats;
  Train(options, {.steps = 6, .reads_gradients = true}, stats);
  EXPECT_GT(stats.phases.planned_rounds, 3);
  EXPECT_GT(updates_on_device_, 0);
}

TEST_F(PlannedTrainingTest, TheOnlinePolicyHasNoPlans) {
  TrainingOptions options = TightOptions();
  options.policy.kind = PolicyKind::kOnline;
  TrainingStats stats;
  Train(options, {.steps = 3}, stats);
  EXPECT_EQ(stats.phases.rounds, 3);
  EXPECT_EQ(stats.phases.planned_rounds, 0);
}

}  // namespace
}  // namespace gemini::client::hooks
