// SPDX-License-Identifier: Apache-2.0
// The same bits come out wherever a chunk lived: training with every chunk sent off DEVICE at random
// operators, in a DEVICE budget that evicts on its own, and with HOST so small that NVME is used, is
// bit-equal to plain training with the same update.
#include <random>

#include "ATen/record_function.h"
#include "tests/torch/small_models.h"
#include "tests/torch/training_fixture.h"
#include "torch/nn/utils/clip_grad.h"

namespace gemini::client::hooks {
namespace {

// The session whose chunks are thrown off DEVICE at random ends of operators.
Session* g_evicted_session = nullptr;
std::mt19937_64 g_random;

std::unique_ptr<at::ObserverContext> BeforeOperator(const at::RecordFunction&) {
  if (g_evicted_session != nullptr && g_random() % 3 == 0) {
    g_evicted_session->residency().MakeRoom(g_evicted_session->device_budget().budget_bytes());
  }
  return nullptr;
}

struct TrainingRun {
  int steps = 6;
  int accumulate = 1;
  double clip = 0;
  bool evict_at_random = false;
};

class PlacementInvariance : public TrainingTest {
 protected:
  // Trains two equal models, one managed, and compares loss, gradients and parameters at each step.
  template <typename Model>
  void Compare(const TrainingOptions& options, const TrainingRun& run) {
    torch::manual_seed(7);
    Model reference;
    torch::manual_seed(7);
    Model managed;
    Open(options);
    OptimizerSpec spec;
    spec.learning_rate = 0.01;
    ReferenceAdamW optimizer(UniqueParameters(reference), spec);
    ManagedModel* const model = Manage(managed, spec);
    ASSERT_NE(model, nullptr);
    const at::CallbackHandle callback =
        at::addGlobalCallback(at::RecordFunctionCallback(&BeforeOperator));
    for (int step = 0; step < run.steps; ++step) {
      reference.zero_grad();
      managed.zero_grad();
      for (int micro = 0; micro < run.accumulate; ++micro) {
        const at::Tensor expected = reference.Loss(step * 10 + micro);
        expected.backward();
        g_evicted_session = run.evict_at_random ? &session_->session() : nullptr;
        const at::Tensor loss = managed.Loss(step * 10 + micro);
        loss.backward();
        g_evicted_session = nullptr;
        ASSERT_TRUE(loss.equal(expected)) << "step " << step << " micro-batch " << micro;
      }
      for (size_t i = 0; i < reference.parameters().size(); ++i) {
        const at::Tensor expected = reference.parameters()[i].grad();
        const at::Tensor gradient = managed.parameters()[i].grad();
        ASSERT_EQ(gradient.defined(), expected.defined()) << i;
        if (expected.defined()) {
          ASSERT_TRUE(gradient.equal(expected)) << i;
        }
      }
      optimizer.Step(run.clip);
      StepOptions step_options;
      step_options.max_grad_norm = run.clip;
      step_options.overlap_update = step % 3 != 2;  // The same bits, when it is done.
      ASSERT_OK(model->Step(step_options));
      // Evaluation between steps.
      const at::NoGradGuard no_grad;
      ASSERT_TRUE(managed.Loss(1000 + step).equal(reference.Loss(1000 + step)));
    }
    at::removeCallback(callback);
    for (const auto& item : reference.named_parameters()) {
      EXPECT_TRUE(managed.named_parameters()[item.key()].equal(item.value())) << item.key();
    }
    for (const auto& item : reference.named_buffers()) {
      EXPECT_TRUE(managed.named_buffers()[item.key()].equal(item.value())) << item.key();
    }
    const TrainingStats stats = session_->stats();
    RecordProperty("floor_bytes", std::to_string(stats.pinned_peak_bytes));
    EXPECT_LE(stats.device_peak_bytes, stats.device_budget_bytes);
    EXPECT_OK(session_->status());
  }

};

TEST_F(PlacementInvariance, TransformerWithRandomEvictions) {
  Compare<Transformer>(SmallOptions(), {.evict_at_random = true});
}

TEST_F(PlacementInvariance, TransformerInATightDeviceBudget) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  options.device_memory = 1 * kMiB;
  Compare<Transformer>(options, {.steps = 4});
  EXPECT_GT(session_->stats().fetch_bytes, 0);
  EXPECT_GT(GetAllocationStats().rooms_made, 0);
}

TEST_F(PlacementInvariance, TransformerThatSpillsToNvme) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  options.host_memory = 400 * kKiB;
  options.nvme_memory = 16 * kMiB;
  Compare<Transformer>(options, {.steps = 4, .evict_at_random = true});
}

TEST_F(PlacementInvariance, AccumulationAndClipping) {
  Compare<Transformer>(SmallOptions(), {.accumulate = 3, .clip = 0.5, .evict_at_random = true});
}

TEST_F(PlacementInvariance, BatchNormBuffers) {
  Compare<ConvNet>(SmallOptions(), {.evict_at_random = true});
}

TEST_F(PlacementInvariance, TensorsThatSpanChunks) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  Compare<Wide>(options, {.accumulate = 2, .clip = 1.0, .evict_at_random = true});
}

TEST_F(PlacementInvariance, ATensorWithMoreChunksThanHostHasSlots) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  options.host_memory = 24 * options.chunk_bytes;  // `wide` has 30.
  options.nvme_memory = 16 * kMiB;
  Compare<Wide>(options, {.steps = 3, .clip = 1.0});
}

TEST_F(PlacementInvariance, TorchsOwnClippingWorksOnManagedGradients) {
  torch::manual_seed(7);
  ConvNet reference;
  torch::manual_seed(7);
  ConvNet managed;
  Open(SmallOptions());
  Manage(managed);
  for (ConvNet* net : {&reference, &managed}) {
    net->Loss(1).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
  }
  for (size_t i = 0; i < reference.parameters().size(); ++i) {
    EXPECT_TRUE(managed.parameters()[i].grad().equal(reference.parameters()[i].grad()));
  }
}

}  // namespace
}  // namespace gemini::client::hooks
