// SPDX-License-Identifier: Apache-2.0
// Evaluations of a managed model with experts: planned, all experts run and a plan brings them;
// routed, the chosen ones are fetched when they are chosen.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "client/torch/model/tensor_copy.h"
#include "tests/client/torch/training_fixture.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/forecast/traced_step.h"
#include "trainer/models/expert_cache.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {
namespace {

using namespace client::hooks;  // NOLINT: this is a test of all that is in there.
using torch::Tensor;

constexpr int64_t kVocabulary = 256;
constexpr const char* kConfig = R"({"model_type":"qwen3_moe","vocab_size":256,"hidden_size":64,
    "max_position_embeddings":128,"num_hidden_layers":2,"num_attention_heads":4,"head_dim":16,
    "num_key_value_heads":2,"intermediate_size":128,"moe_intermediate_size":64,
    "num_experts":32,"num_experts_per_tok":8,"output_router_logits":true})";

class RoutedEvaluationTest : public TrainingTest {
 protected:
  RoutedEvaluationTest() { at::set_num_threads(1); }

  void Make(int64_t device_bytes, PolicyKind policy = PolicyKind::kAuto) {
    spec_ = ParseHfConfig(config_, "config")->spec;
    model_ = *MakeStagedModel(spec_, torch::kFloat32);
    torch::manual_seed(1);
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : model_->parameters()) parameter.normal_(0, 0.1);
    }
    model_->eval();
    TrainingOptions options = SmallOptions();
    options.device_memory = device_bytes;
    options.host_memory = 64 * kMiB;
    options.policy.kind = policy;
    Open(options);
    managed_ = Manage(*model_);
    ASSERT_NE(managed_, nullptr);
  }
  static Tensor Tokens(int64_t count) {
    return torch::randint(0, kVocabulary, {1, count}, torch::kInt64);
  }
  std::unique_ptr<ExpertCache> Cache(int64_t bytes) {
    return std::make_unique<ExpertCache>(spec_, layers_, bytes, fetch_);
  }
  int64_t ExpertBytes() const {
    return 3 * spec_.width * spec_.experts->width * static_cast<int64_t>(sizeof(float));
  }
  // A batch, as the training loop evaluates it. `begun` is called in its phase.
  Tensor Evaluate(const Tensor& tokens, const ExpertRouting& routing) {
    return Evaluate(tokens, routing.routed ? "eval-routed" : "eval", [&] { return routing; });
  }
  Tensor Evaluate(const Tensor& tokens, const char* phase,
                  const std::function<ExpertRouting()>& begun) {
    const torch::NoGradGuard no_grad;
    session_->phases().BeginPhase(phase);
    model_->set_routing(begun());
    Tensor logits = model_->Forward(tokens);
    model_->set_routing({});
    session_->phases().EndPhase();
    EXPECT_OK(session_->status()) << phase;
    return logits;
  }
  // How many experts the tokens choose, over all blocks.
  int64_t NumChosen(const Tensor& tokens) {
    const torch::NoGradGuard no_grad;
    int64_t count = 0;
    Stream stream = model_->Embed({.inputs = tokens});
    const BatchContext context = model_->ContextOf(stream.hidden);
    Tensor before = torch::zeros({spec_.experts->count});
    for (const auto& block : model_->blocks()) {
      stream = block->Forward(stream, context);
      count += (stream.router_sums[0] - before).ne(0).sum().item<int64_t>();
      before = stream.router_sums[0];
    }
    return count;
  }
  int64_t FetchedBytes() const { return session_->stats().fetch_bytes; }
  // The causes for which rounds left their plan, each as often as it did.
  std::vector<std::string> Divergences() const {
    std::vector<std::string> names;
    for (int i = 0; i < kNumDivergences; ++i) {
      names.insert(names.end(), session_->stats().phases.divergences[i],
                   std::string(DivergenceName(static_cast<Divergence>(i))));
    }
    return names;
  }

  const char* config_ = kConfig;
  ModelSpec spec_;
  std::unique_ptr<StagedModel> model_;
  ManagedModel* managed_ = nullptr;
  PlainLayers layers_{torch::kFloat32};
  const FetchWeights fetch_ = [this](const Tensor& from,
                                     const Tensor& to) -> absl::StatusOr<std::function<void()>> {
    const absl::StatusOr<PendingCopy> copy = BeginCopy(session_->session(), from, to);
    if (!copy.ok()) return copy.status();
    return [this, copy = *copy] { AwaitCopy(session_->session(), copy); };
  };
};

TEST_F(RoutedEvaluationTest, FetchesTheBytesOfTheChosenExpertsLessHits) {
  // Without plans, what is no expert's stays on DEVICE.
  Make(/*device_bytes=*/8 * kMiB, PolicyKind::kOnline);
  for (const int64_t count : {1, 8}) {
    const Tensor tokens = Tokens(count);
    const Tensor planned = Evaluate(tokens, {});
    const int64_t chosen_bytes = NumChosen(tokens) * ExpertBytes();
    ASSERT_LT(chosen_bytes, 2 * 32 * ExpertBytes());  // Some that nobody chose.
    const auto large = Cache(4 * kMiB);
    // The parameters that are no experts' come, and stay.
    EXPECT_TRUE(torch::equal(Evaluate(tokens, {.routed = true, .cache = large.get()}), planned));
    EXPECT_EQ(large->fetched_bytes(), chosen_bytes);
    int64_t before = FetchedBytes();
    EXPECT_TRUE(torch::equal(Evaluate(tokens, {.routed = true, .cache = large.get()}), planned));
    EXPECT_EQ(FetchedBytes(), before);  // Hits.
    const auto small = Cache(3 * ExpertBytes());
    before = FetchedBytes();
    EXPECT_TRUE(torch::equal(Evaluate(tokens, {.routed = true, .cache = small.get()}), planned));
    EXPECT_EQ(FetchedBytes() - before, chosen_bytes);
  }
}

// The cache is made when the phase has begun, as by the training loop, and holds a part of what the
// tokens choose.
TEST_F(RoutedEvaluationTest, PlansHaveNoExpertsAndLeaveTheCacheItsRoom) {
  Make(/*device_bytes=*/2 * kMiB);
  constexpr int kRounds = 6;
  const Tensor tokens = Tokens(8);
  Tensor planned;
  for (int round = 0; round < kRounds; ++round) planned = Evaluate(tokens, {});
  std::unique_ptr<ExpertCache> cache;
  for (int round = 0; round < kRounds; ++round) {
    const auto begun = [&] {
      if (cache == nullptr) cache = Cache(kMiB);
      return ExpertRouting{.routed = true, .cache = cache.get()};
    };
    EXPECT_TRUE(torch::equal(Evaluate(tokens, "eval-routed", begun), planned)) << round;
  }
  ASSERT_OK_AND_ASSIGN(const Trace trace, session_->phases().TraceOf("eval-routed"));
  std::vector<bool> is_used(trace.tensors.size());
  for (const TensorUse& use : trace.uses) is_used[static_cast<size_t>(use.tensor)] = true;
  const std::vector<ManagedTensorInfo>& tensors = managed_->tensors();
  ASSERT_EQ(tensors.size(), is_used.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(is_used[i], !absl::StrContains(tensors[i].name, ".experts.")) << tensors[i].name;
  }
  for (const TracedOperator& one : trace.operators) {
    EXPECT_GE(one.non_model_peak_bytes, cache->capacity() * ExpertBytes());
  }
  EXPECT_THAT(Divergences(), ::testing::IsEmpty());
  EXPECT_EQ(session_->stats().phases.planned_rounds, 2 * (kRounds - 1));
  EXPECT_LT(cache->capacity(), NumChosen(tokens));
}

// Of 128 tokens each expert gets 8, more or less, and so the memory of an operator differs from
// batch to batch. Plans have left room for all that it may be.
TEST_F(RoutedEvaluationTest, PlannedRoundsKeepToTheirPlanHoweverTheRouterDeals) {
  config_ = R"({"model_type":"qwen3_moe","vocab_size":256,"hidden_size":64,
      "max_position_embeddings":128,"num_hidden_layers":3,"num_attention_heads":4,"head_dim":16,
      "num_key_value_heads":2,"intermediate_size":128,"moe_intermediate_size":32,
      "num_experts":128,"num_experts_per_tok":8})";
  constexpr int64_t kTokens = 128;
  constexpr int kRounds = 12;
  Make(/*device_bytes=*/6 * kMiB);  // Of 14 MiB: parameters, and activations beside them.
  for (const bool train : {false, true}) {
    const RoundShape round = {.train = train, .sequence = kTokens, .on_cpu = true};
    ASSERT_OK_AND_ASSIGN(NamedTrace made, TraceStep(spec_, round, {}));
    ASSERT_OK_AND_ASSIGN(made.trace.room_bytes, MostNonModelBytes(spec_, round));
    session_->phases().Foretell(std::move(made.trace));
  }
  for (int i = 0; i < kRounds; ++i) {
    model_->eval();
    Evaluate(Tokens(kTokens), {});
    model_->train();
    model_->Loss(Tokens(kTokens)).backward();
    ASSERT_OK(managed_->Step({}));
    model_->zero_grad();
  }
  EXPECT_THAT(Divergences(), ::testing::IsEmpty());
  EXPECT_EQ(session_->stats().phases.planned_rounds, 2 * kRounds);
  EXPECT_GT(FetchedBytes(), 2 * kRounds * 2 * kMiB);
}

TEST_F(RoutedEvaluationTest, FindsWhatAStepHasChanged) {
  Make(/*device_bytes=*/6 * kMiB);
  for (int step = 0; step < 3; ++step) {
    model_->Loss(Tokens(64)).backward();
    ASSERT_OK(managed_->Step({}));
    model_->zero_grad();
    const Tensor tokens = Tokens(8);
    const auto cache = Cache(kMiB);
    const Tensor routed = Evaluate(tokens, {.routed = true, .cache = cache.get()});
    EXPECT_TRUE(torch::equal(routed, Evaluate(tokens, {}))) << step;
  }
}

}  // namespace
}  // namespace gemini::trainer
