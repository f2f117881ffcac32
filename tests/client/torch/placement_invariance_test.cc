// SPDX-License-Identifier: Apache-2.0
// The same bits come out wherever a chunk lived: training with every chunk sent off DEVICE at
// random operators, in a DEVICE budget that evicts on its own, and with HOST so small that NVME is
// used, is bit-equal to plain training with the same update.
#include <random>

#include "ATen/record_function.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/torch/small_models.h"
#include "tests/client/torch/training_fixture.h"
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
  bool edit = false;  // Some elements of each parameter, in place, before each step.
  ElementType element = ElementType::kFp32;
};

class PlacementInvariance : public TrainingTest {
 protected:
  static void Edit(torch::nn::Module& model, int step) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : UniqueParameters(model)) {
      parameter.select(0, step % parameter.size(0)).mul_(-0.3);
    }
  }

  // The tensor's fp32 values, in the order of its strides.
  static std::vector<float> ReadValues(ManagedModel& model, const std::string& name,
                                       ChunkKind kind) {
    std::vector<float> values;
    EXPECT_OK(model.Read(name, kind, [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
      EXPECT_EQ(offset_bytes, static_cast<int64_t>(values.size() * sizeof(float)));
      const size_t first = values.size();
      values.resize(first + bytes.size() / sizeof(float));
      std::memcpy(&values[first], bytes.data(), bytes.size());
      return absl::OkStatus();
    }));
    return values;
  }

  // Trains two equal models, one managed, and compares loss, gradients and parameters at each step.
  template <typename Model>
  void Compare(const TrainingOptions& options, const TrainingRun& run) {
    torch::manual_seed(7);
    Model reference;
    torch::manual_seed(7);
    Model managed;
    reference.to(ScalarTypeOf(run.element));
    managed.to(ScalarTypeOf(run.element));
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
      if (run.edit) {
        Edit(reference, step);
        Edit(managed, step);
      }
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
    const std::vector<at::Tensor> unique = UniqueParameters(reference);
    for (const auto& item : reference.named_parameters()) {
      const auto same = std::ranges::find_if(
          unique, [&](const at::Tensor& tensor) { return tensor.is_same(item.value()); });
      ASSERT_NE(same, unique.end());
      const ReferenceAdamW::State& state = optimizer.states()[same - unique.begin()];
      if (state.step == 0) continue;
      EXPECT_EQ(ReadValues(*model, item.key(), ChunkKind::kParam), state.values) << item.key();
      EXPECT_EQ(ReadValues(*model, item.key(), ChunkKind::kExpAvg), state.exp_avg) << item.key();
      EXPECT_EQ(ReadValues(*model, item.key(), ChunkKind::kExpAvgSq), state.exp_avg_sq)
          << item.key();
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

class PlacementInvarianceIn16Bits : public PlacementInvariance,
                                    public ::testing::WithParamInterface<ElementType> {};

INSTANTIATE_TEST_SUITE_P(Types, PlacementInvarianceIn16Bits,
                         ::testing::Values(ElementType::kBf16, ElementType::kFp16),
                         [](const auto& test) { return std::string(ElementTypeName(test.param)); });

TEST_P(PlacementInvarianceIn16Bits, TransformerWithRandomEvictions) {
  Compare<Transformer>(SmallOptions(), {.evict_at_random = true, .element = GetParam()});
}

TEST_P(PlacementInvarianceIn16Bits, TransformerInATightDeviceBudget) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  options.device_memory = 640 * kKiB;
  Compare<Transformer>(options, {.steps = 4, .element = GetParam()});
  EXPECT_GT(session_->stats().fetch_bytes, 0);
}

TEST_P(PlacementInvarianceIn16Bits, TransformerThatSpillsToNvme) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  options.host_memory = (SpareSlots({.element = GetParam()}) + 2) * options.chunk_bytes;
  options.nvme_memory = 16 * kMiB;
  Compare<Transformer>(options, {.steps = 4, .evict_at_random = true, .element = GetParam()});
}

TEST_P(PlacementInvarianceIn16Bits, WhatIsEditedInPlaceHasItsNewValueAndAllElseKeepsItsOwn) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  Compare<Transformer>(options, {.evict_at_random = true, .edit = true, .element = GetParam()});
}

TEST_P(PlacementInvarianceIn16Bits, TensorsThatSpanChunksWithAccumulationAndClipping) {
  TrainingOptions options = SmallOptions();
  options.chunk_bytes = 16 * kKiB;
  Compare<Wide>(options,
                {.accumulate = 2, .clip = 1.0, .evict_at_random = true, .element = GetParam()});
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
