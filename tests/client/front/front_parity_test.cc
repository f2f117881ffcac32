// SPDX-License-Identifier: Apache-2.0
// The optimizers of the front door against LibTorch's own with the same options: the same losses.
#include <tuple>

#include "tests/client/front/front_fixture.h"
#include "torch/optim/schedulers/step_lr.h"

namespace gemini {
namespace {

constexpr int kSteps = 20;
constexpr double kTolerance = 1e-5;

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

void ExpectSame(const std::vector<float>& losses, const std::vector<float>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], kTolerance) << "step " << i;
  }
  EXPECT_LT(expected.back(), expected.front());
}

class FrontParityTest : public FrontTest {
 protected:
  // Trains both with one group, with two, and with two under a schedule.
  template <typename Plain, typename Managed, typename Options>
  void CheckAll(const Options& options, const Options& others) {
    for (const bool has_groups : {false, true}) {
      for (const bool has_schedule : {false, true}) {
        SCOPED_TRACE(absl::StrCat("groups: ", has_groups, ", schedule: ", has_schedule));
        const auto losses_of = [&](FrontNet& net, torch::optim::Optimizer& optimizer) {
          torch::optim::StepLR schedule(optimizer, /*step_size=*/5, /*gamma=*/0.5);
          return Train(net, optimizer, 0, kSteps, [&] {
            if (has_schedule) schedule.step();
          });
        };
        FrontNet plain_net = MakeNet(), net = MakeNet();
        std::vector<float> expected;
        if (has_groups) {
          Plain plain(TwoGroups(plain_net, options, others), options);
          expected = losses_of(plain_net, plain);
        } else {
          Plain plain(plain_net->parameters(), options);
          expected = losses_of(plain_net, plain);
        }
        Session session(options_);
        if (has_groups) {
          Managed optimizer(session, *net, TwoGroups(net, options, others), options);
          ExpectSame(losses_of(net, optimizer), expected);
        } else {
          Managed optimizer(session, *net, options);
          ExpectSame(losses_of(net, optimizer), expected);
        }
        EXPECT_GT(session.stats().fetch_bytes, 0);
      }
    }
  }
};

TEST_F(FrontParityTest, SgdIsThatOfLibTorch) {
  CheckAll<torch::optim::SGD, SGD>(SGDOptions(0.05), SGDOptions(0.1).weight_decay(0.01));
}

TEST_F(FrontParityTest, SgdWithMomentumIsThatOfLibTorch) {
  CheckAll<torch::optim::SGD, SGD>(SGDOptions(0.02).momentum(0.9).weight_decay(0.01),
                                   SGDOptions(0.01).momentum(0.8));
}

TEST_F(FrontParityTest, SgdWithDampeningIsThatOfLibTorch) {
  CheckAll<torch::optim::SGD, SGD>(SGDOptions(0.05).momentum(0.9).dampening(0.3),
                                   SGDOptions(0.05).momentum(0.5).dampening(0.5));
}

TEST_F(FrontParityTest, SgdWithNesterovIsThatOfLibTorch) {
  CheckAll<torch::optim::SGD, SGD>(SGDOptions(0.02).momentum(0.9).nesterov(true).weight_decay(0.01),
                                   SGDOptions(0.02).momentum(0.9));
}

TEST_F(FrontParityTest, AdamIsThatOfLibTorch) {
  CheckAll<torch::optim::Adam, Adam>(AdamOptions(3e-3).weight_decay(0.01),
                                     AdamOptions(1e-3).betas(std::make_tuple(0.8, 0.95)).eps(1e-6));
}

TEST_F(FrontParityTest, AdamWIsThatOfLibTorch) {
  // The default of LibTorch's decays every parameter.
  CheckAll<torch::optim::AdamW, AdamW>(
      AdamWOptions(3e-3), AdamWOptions(1e-2).betas(std::make_tuple(0.7, 0.9)).weight_decay(0));
}

TEST_F(FrontParityTest, LayerWiseOptimizersLearnInGroups) {
  for (const bool is_lamb : {true, false}) {
    FrontNet net = MakeNet();
    Session session(options_);
    std::unique_ptr<Optimizer> optimizer;
    if (is_lamb) {
      const LambOptions options = LambOptions(1e-2).weight_decay(0.01);
      optimizer = std::make_unique<Lamb>(session, *net, TwoGroups(net, options, LambOptions(1e-3)),
                                         options);
    } else {
      const LarsOptions options = LarsOptions(1.0).trust_coefficient(0.02);
      optimizer =
          std::make_unique<Lars>(session, *net, TwoGroups(net, options, LarsOptions(0.5)), options);
    }
    const std::vector<float> losses = Train(net, *optimizer, 0, kSteps);
    EXPECT_LT(losses.back(), losses.front());
  }
}

TEST_F(FrontParityTest, TwoModelsTrainAgainstEachOtherAsInLibTorch) {
  const auto losses_of = [](FrontNet& first, FrontNet& second, torch::optim::Optimizer& of_first,
                            torch::optim::Optimizer& of_second) {
    std::vector<float> losses;
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor x = BatchOf(step).first;
      of_second.zero_grad();
      const torch::Tensor guess = second->forward(x);
      const torch::Tensor gap = (first->forward(x).detach() - guess).square().mean();
      gap.backward();
      of_second.step();
      of_first.zero_grad();
      const torch::Tensor flight = -0.1 * (first->forward(x) - second->forward(x)).square().mean() +
                                   first->forward(x).square().mean();
      flight.backward();
      of_first.step();
      losses.push_back(gap.item<float>());
      losses.push_back(flight.item<float>());
    }
    return losses;
  };
  FrontNet plain_first = MakeNet(3), plain_second = MakeNet(4);
  torch::optim::AdamW plain_adamw(plain_first->parameters(), AdamWOptions(1e-3));
  torch::optim::SGD plain_sgd(plain_second->parameters(), SGDOptions(0.05).momentum(0.5));
  const std::vector<float> expected = losses_of(plain_first, plain_second, plain_adamw, plain_sgd);

  FrontNet first = MakeNet(3), second = MakeNet(4);
  Session session({.device_memory = "1MiB"});
  AdamW adamw(session, *first, AdamWOptions(1e-3));
  SGD sgd(session, *second, SGDOptions(0.05).momentum(0.5));
  const std::vector<float> losses = losses_of(first, second, adamw, sgd);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], kTolerance) << i;
}

TEST_F(FrontParityTest, NvmeTakesWhatHostCannotHold) {
  FrontNet net = MakeNet(), plain_net = MakeNet();
  torch::optim::AdamW plain(plain_net->parameters(), AdamWOptions(1e-3));
  SessionOptions options = options_;
  options.host_memory = "2MiB";
  options.nvme = folder_.string() + ":64MiB";
  Session session(options);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  ExpectSame(Train(net, optimizer, 0, kSteps), Train(plain_net, plain, 0, kSteps));
  EXPECT_GT(session.stats().nvme_bytes, 0);
}

TEST_F(FrontParityTest, AStepTakesAClosureAndSizesAreOptional) {
  FrontNet net = MakeNet(), plain_net = MakeNet();
  torch::optim::AdamW plain(plain_net->parameters(), AdamWOptions(1e-3));
  Session session;
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    const float expected = TrainStep(plain_net, plain, step);
    const auto [x, y] = BatchOf(step);
    const torch::Tensor loss = optimizer.step([&, x = x, y = y] {
      optimizer.zero_grad();
      const torch::Tensor of_batch = torch::mse_loss(net->forward(x), y);
      of_batch.backward();
      return of_batch;
    });
    EXPECT_NEAR(loss.item<float>(), expected, kTolerance);
  }
  EXPECT_EQ(optimizer.num_steps(), 3);
  EXPECT_GT(session.stats().device_budget_bytes, 0);
}

}  // namespace
}  // namespace gemini
