// SPDX-License-Identifier: Apache-2.0
// The same bits come out wherever a chunk lived: training with every chunk sent off DEVICE at random
// operators, in a DEVICE budget that evicts on its own, and with HOST so small that NVME is used, is
// bit-equal to plain training with the same update.
#include <random>

#include "ATen/record_function.h"
#include "tests/torch/training_fixture.h"
#include "torch/nn/functional/activation.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/utils/clip_grad.h"

namespace gemini::client::hooks {
namespace {

constexpr int64_t kVocabulary = 300;
constexpr int64_t kWidth = 48;
constexpr int64_t kHeads = 4;

// What the three models have in common: a loss from a seed.
struct TestModel : torch::nn::Module {
  virtual at::Tensor Loss(int64_t seed) = 0;
};

// Pre-norm attention blocks, head tied to the embedding, views and chunks of parameters, an in-place
// operator, a parameter that is frozen and one that is not used.
struct Transformer : TestModel {
  Transformer() {
    embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth));
    positions = register_parameter("positions", torch::randn({16, kWidth}) * 0.02);
    for (int i = 0; i < 2; ++i) {
      const std::string name = "block" + std::to_string(i);
      norms.push_back(register_module(name + "norm",
                                      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}))));
      qkv.push_back(register_module(name + "qkv", torch::nn::Linear(kWidth, 3 * kWidth)));
      mlp_in.push_back(register_module(name + "in", torch::nn::Linear(kWidth, 4 * kWidth)));
      mlp_out.push_back(register_module(name + "out", torch::nn::Linear(4 * kWidth, kWidth)));
    }
    head = register_parameter("head", embedding->weight);  // Tied.
    unused = register_parameter("unused", torch::randn({100}));
    frozen = register_parameter("frozen", torch::randn({kWidth}), /*requires_grad=*/false);
  }
  at::Tensor Loss(int64_t seed) override {
    torch::manual_seed(seed);
    const at::Tensor tokens = torch::randint(kVocabulary, {3, 16}, torch::kLong);
    at::Tensor x = embedding->forward(tokens) + positions.narrow(0, 0, 16).unsqueeze(0);
    for (size_t i = 0; i < qkv.size(); ++i) {
      const at::Tensor normed = norms[i]->forward(x);
      std::vector<at::Tensor> parts = qkv[i]->forward(normed).chunk(3, -1);
      for (at::Tensor& part : parts) part = part.view({3, 16, kHeads, -1}).transpose(1, 2);
      const at::Tensor attention =
          at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
      x = x + attention.transpose(1, 2).reshape({3, 16, kWidth});
      x = x + mlp_out[i]->forward(mlp_in[i]->forward(x).relu_());
    }
    x = x * frozen;
    const at::Tensor logits = x.matmul(head.t());
    return torch::nll_loss(torch::log_softmax(logits.view({-1, kVocabulary}), -1),
                           tokens.view(-1)) +
           // Index operators take Tensor?[].
           positions.index({torch::tensor({1, 3})}).square().sum() * 0.01;
  }
  torch::nn::Embedding embedding{nullptr};
  at::Tensor positions, head, unused, frozen;
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> qkv, mlp_in, mlp_out;
};

// Running statistics change behind schema and version counter.
struct ConvNet : TestModel {
  ConvNet() {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 24, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(24));
    fc = register_module("fc", torch::nn::Linear(24 * 8 * 8, 10));
  }
  at::Tensor Loss(int64_t seed) override {
    torch::manual_seed(seed);
    const at::Tensor x = torch::randn({4, 3, 8, 8});
    return fc->forward(norm->forward(conv->forward(x)).relu().flatten(1)).logsumexp(1).mean();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};

// A tensor that spans many chunks, between small ones.
struct Wide : TestModel {
  Wide() {
    a = register_module("a", torch::nn::Linear(32, 40));
    wide = register_module("wide", torch::nn::Linear(40, 3001));
    b = register_module("b", torch::nn::Linear(3001, 5));
  }
  at::Tensor Loss(int64_t seed) override {
    torch::manual_seed(seed);
    return b->forward(wide->forward(a->forward(torch::randn({2, 32})).tanh()).tanh())
        .square()
        .sum();
  }
  torch::nn::Linear a{nullptr}, wide{nullptr}, b{nullptr};
};

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
    ReferenceAdamW optimizer(Unique(reference), spec);
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

  // A tied weight once.
  static std::vector<at::Tensor> Unique(torch::nn::Module& module) {
    std::vector<at::Tensor> unique;
    for (const at::Tensor& parameter : module.parameters()) {
      bool known = false;
      for (const at::Tensor& other : unique) known = known || other.is_same(parameter);
      if (!known) unique.push_back(parameter);
    }
    return unique;
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
