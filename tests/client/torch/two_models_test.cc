// SPDX-License-Identifier: Apache-2.0
// Two managed models in one session: their rounds are told apart and follow plans, and the bits are
// those of plain training.
#include <functional>

#include "client/plan/phase_tracker.h"
#include "tests/client/torch/training_fixture.h"
#include "torch/nn/modules/linear.h"

namespace gemini::client::hooks {
namespace {

constexpr int64_t kWidth = 64;
constexpr int kLayers = 6;
constexpr int64_t kBatch = 8;

// A residual stack: 12 matrices of a chunk each.
struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kLayers; ++i) {
      in.push_back(
          register_module("in" + std::to_string(i), torch::nn::Linear(kWidth, 4 * kWidth)));
      out.push_back(
          register_module("out" + std::to_string(i), torch::nn::Linear(4 * kWidth, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < kLayers; ++i) x = x + out[i]->forward(in[i]->forward(x).tanh());
    return x;
  }
  std::vector<torch::nn::Linear> in, out;
};

struct Pair {
  Net& first;
  Net& second;
  std::function<void()> update_first, update_second;
  std::vector<float> losses = {};

  void Backward(const at::Tensor& loss) {
    loss.backward();
    losses.push_back(loss.item<float>());
  }
};

// One iteration of a loop over two models.
using Iteration = std::function<void(Pair& pair)>;

class TwoModelsTest : public TrainingTest {
 protected:
  static constexpr int kWarmUp = 10, kMeasured = 10;

  // Trains plain models, then managed ones in one session, and compares losses and parameters.
  // Counts the rounds behind the first kWarmUp iterations.
  void Train(const TrainingOptions& options, const Iteration& iteration) {
    OptimizerSpec spec;
    spec.learning_rate = 1e-3;
    torch::manual_seed(7);
    Net plain_first, plain_second;
    ReferenceAdamW first(plain_first.parameters(), spec), second(plain_second.parameters(), spec);
    Pair plain = {plain_first, plain_second, [&] { first.Step(); }, [&] { second.Step(); }};
    Run(iteration, plain, [](int) {});
    torch::manual_seed(7);
    Net managed_first, managed_second;
    Open(options);
    if (HasFatalFailure()) return;
    ManageOptions half;
    half.host_memory = options.host_memory / 2;
    half.nvme_memory = options.nvme_memory / 2;
    half.space_name = "first";
    ASSERT_OK_AND_ASSIGN(ManagedModel* const first_model,
                         session_->Manage(managed_first, spec, half));
    half.space_name = "second";
    ASSERT_OK_AND_ASSIGN(ManagedModel* const second_model,
                         session_->Manage(managed_second, spec, half));
    Pair managed = {managed_first, managed_second, [&] { ASSERT_OK(first_model->Step({})); },
                    [&] { ASSERT_OK(second_model->Step({})); }};
    PhaseStats before;
    Run(iteration, managed, [&](int number) {
      if (number == kWarmUp) before = session_->stats().phases;
    });
    if (HasFatalFailure()) return;
    const PhaseStats after = session_->stats().phases;
    rounds_ = after.rounds - before.rounds;
    planned_rounds_ = after.planned_rounds - before.planned_rounds;
    divergences_ = Sum(after) - Sum(before);
    warm_up_divergences_ = Sum(before);
    EXPECT_OK(session_->phases().plan_status());
    EXPECT_OK(session_->status());
    EXPECT_EQ(managed.losses, plain.losses);
    for (const auto& [got, want] :
         {std::pair(&managed_first, &plain_first), std::pair(&managed_second, &plain_second)}) {
      for (const auto& item : want->named_parameters()) {
        EXPECT_TRUE(got->named_parameters()[item.key()].equal(item.value())) << item.key();
      }
    }
  }

  static TrainingOptions TightOptions() {
    TrainingOptions options = SmallOptions();
    options.device_memory = 3 * kMiB / 2;
    return options;
  }
  // The generator comes first; each iteration updates the critic `num_critic` times.
  static Iteration Adversarial(int num_critic) {
    return [num_critic](Pair& pair) {
      for (int i = 0; i < num_critic; ++i) {
        const at::Tensor noise = torch::randn({kBatch, kWidth});
        pair.second.zero_grad();
        const at::Tensor fake = pair.first.forward(noise).detach();
        const at::Tensor real = torch::randn({kBatch, kWidth});
        pair.Backward((pair.second.forward(real) - 1).square().mean() +
                      pair.second.forward(fake).square().mean());
        pair.update_second();
      }
      pair.first.zero_grad();
      const at::Tensor fake = pair.first.forward(torch::randn({kBatch, kWidth}));
      pair.Backward((pair.second.forward(fake) - 1).square().mean());
      pair.update_first();
    };
  }

  // Behind the warm-up, but for what is at its beginning.
  int64_t rounds_ = 0, planned_rounds_ = 0, divergences_ = 0;
  int64_t warm_up_divergences_ = 0;

 private:
  static void Run(const Iteration& iteration, Pair& pair, const std::function<void(int)>& begins) {
    for (int i = 0; i < kWarmUp + kMeasured; ++i) {
      begins(i);
      torch::manual_seed(100 + i);
      iteration(pair);
      if (HasFatalFailure()) return;
    }
  }
  static int64_t Sum(const PhaseStats& stats) {
    int64_t sum = 0;
    for (const int64_t count : stats.divergences) sum += count;
    return sum;
  }
};

const Iteration kInSequence = [](Pair& pair) {
  pair.first.zero_grad();
  pair.second.zero_grad();
  const at::Tensor x = torch::randn({kBatch, kWidth});
  pair.Backward(pair.second.forward(pair.first.forward(x)).square().mean());
  pair.update_first();
  pair.update_second();
};

// The second update has no operator before it: nothing to place, and so no plan.
TEST_F(TwoModelsTest, OneBehindTheOtherFollowsAPlan) {
  Train(TightOptions(), kInSequence);
  EXPECT_EQ(rounds_, 2 * kMeasured);
  EXPECT_GE(planned_rounds_, kMeasured - 1);
  EXPECT_LE(divergences_, 1);
  EXPECT_LE(warm_up_divergences_, 1);
}

TEST_F(TwoModelsTest, OneBehindTheOtherWorksFromNvme) {
  TrainingOptions options = TightOptions();
  options.host_memory = 10 * kMiB;
  options.nvme_memory = 32 * kMiB;
  Train(options, kInSequence);
  EXPECT_GE(planned_rounds_, kMeasured - 2);
}

TEST_F(TwoModelsTest, OneBehindTheOtherMayBeUpdatedOnDevice) {
  TrainingOptions options = TightOptions();
  options.device_memory = 24 * kMiB;
  options.policy.kind = PolicyKind::kCuda;
  Train(options, kInSequence);
  EXPECT_GE(planned_rounds_, kMeasured - 1);
  EXPECT_LE(divergences_, 1);
}

// Both rounds of an iteration begin with the generator.
TEST_F(TwoModelsTest, AnAdversarialLoopFollowsTwoPlans) {
  Train(TightOptions(), Adversarial(/*num_critic=*/1));
  EXPECT_EQ(rounds_, 2 * kMeasured);
  EXPECT_GE(planned_rounds_, 2 * kMeasured - 1);
  EXPECT_LE(divergences_, 1);
  EXPECT_LE(warm_up_divergences_, 2);
}

TEST_F(TwoModelsTest, AnAdversarialLoopMayBeUpdatedOnDevice) {
  TrainingOptions options = TightOptions();
  options.device_memory = 24 * kMiB;
  options.policy.kind = PolicyKind::kCuda;
  Train(options, Adversarial(/*num_critic=*/1));
  EXPECT_GE(planned_rounds_, 2 * kMeasured - 1);
  EXPECT_LE(divergences_, 1);
}

TEST_F(TwoModelsTest, ACriticOfSeveralUpdatesAnIterationFollowsItsPlans) {
  Train(TightOptions(), Adversarial(/*num_critic=*/5));
  EXPECT_EQ(rounds_, 6 * kMeasured);
  EXPECT_GE(planned_rounds_, 6 * kMeasured - 2);
  EXPECT_LE(divergences_, 1);
}

}  // namespace
}  // namespace gemini::client::hooks
