// SPDX-License-Identifier: Apache-2.0
// Training under a budget is bit-equal to plain training in losses, parameters and moments,
// whatever happens meanwhile: the steps take other branches, the process does other things at
// random operators, another job takes memory in the middle of a step, and placement is drawn at
// random.
//
// All of a run is drawn from its seed: what its steps do (plain training does the same), and chunk
// size, budgets, policy and link of the session.
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <random>

#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "client/torch/model/offloaded_tensors.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/stall_cause.h"
#include "tests/client/torch/random_disturbances.h"
#include "tests/client/torch/second_tenant.h"
#include "tests/client/torch/small_models.h"
#include "tests/client/torch/training_fixture.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/activation_store_managed.h"
#include "trainer/models/staged_model.h"
#include "trainer/models/vertical_schedule.h"

namespace gemini::trainer {
namespace {

using client::OptimizerSpec;
using client::StepOptions;
using client::TrainingStats;
using namespace client::hooks;  // NOLINT: this is a test of all that is in there.

constexpr int kSteps = 20;
constexpr int kSeeds = 4;
constexpr int kTenantStep = 4;  // Follows a plan, and all that happens in it is another job.
constexpr double kMaxNorm = 0.5;

// --- Models: a step from its seed.

class Job {
 public:
  virtual ~Job() = default;
  virtual torch::nn::Module& module() = 0;
  // Forward and backward of all micro-batches. `branches`: of another shape than other steps.
  virtual void ForwardBackward(uint64_t seed, bool branches, ActivationStore& activations,
                               std::vector<float>& losses) = 0;
  virtual float Evaluate(uint64_t seed) = 0;
};

template <typename Model>
class SmallJob final : public Job {
 public:
  torch::nn::Module& module() override { return model_; }
  void ForwardBackward(uint64_t seed, bool branches, ActivationStore& /*activations*/,
                       std::vector<float>& losses) override {
    std::mt19937_64 random(seed);
    for (uint64_t left = 1 + (branches ? random() % 3 : 1); left > 0; --left) {
      at::Tensor loss = model_.Loss(static_cast<int64_t>(random() % 1000));
      if (branches) {
        // Another operator on a parameter, in forward and in backward.
        const std::vector<at::Tensor> parameters = model_.parameters();
        loss = loss + 0.01 * parameters[random() % parameters.size()].square().sum();
      }
      loss.backward();
      losses.push_back(loss.template item<float>());
    }
  }
  float Evaluate(uint64_t seed) override {
    const at::NoGradGuard no_grad;
    return model_.Loss(static_cast<int64_t>(seed % 1000)).template item<float>();
  }

 private:
  Model model_;
};

constexpr char kGpt2[] = R"({"model_type":"gpt2","vocab_size":384,"n_positions":32,"n_embd":128,
    "n_layer":3,"n_head":4})";
constexpr char kOpt[] = R"({"model_type":"opt","vocab_size":384,"hidden_size":128,"ffn_dim":512,
    "max_position_embeddings":32,"num_hidden_layers":3,"num_attention_heads":4,"dropout":0.1})";
constexpr char kOptPostNorm[] = R"({"model_type":"opt","vocab_size":384,"hidden_size":128,
    "ffn_dim":512,"max_position_embeddings":32,"num_hidden_layers":3,"num_attention_heads":4,
    "dropout":0.1,"word_embed_proj_dim":64,"do_layer_norm_before":false,
    "tie_word_embeddings":false})";

template <const char* kConfig>
class LanguageModelJob final : public Job {
 public:
  LanguageModelJob()
      : model_(*MakeStagedModel(ParseHfConfig(kConfig, "config")->spec, torch::kFloat32)) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model_->parameters()) parameter.normal_(0, 0.05);
  }
  torch::nn::Module& module() override { return *model_; }

  void ForwardBackward(uint64_t seed, bool branches, ActivationStore& activations,
                       std::vector<float>& losses) override {
    std::mt19937_64 random(seed);
    torch::manual_seed(seed);
    model_->train();
    std::vector<Batch> batches;
    const int64_t length = branches ? 8 + static_cast<int64_t>(random() % 24) : 20;
    for (uint64_t left = 1 + (branches ? random() % 3 : 1); left > 0; --left) {
      const torch::Tensor tokens = torch::randint(0, 384, {2, length}, torch::kInt64);
      batches.push_back({tokens, Labels::AllOf(tokens)});
    }
    model_->set_recompute(branches && random() % 2 == 0);
    if (branches && random() % 2 == 0) {
      const auto count = static_cast<int64_t>(batches.size());
      const auto vertical = RunVertically(
          *model_, batches, activations, [](int64_t, double) { return absl::OkStatus(); },
          LossFactors::OfStep(1, count * batches.front().labels.count, count));
      ASSERT_OK(vertical);
      for (const LossValues& loss : *vertical) losses.push_back(static_cast<float>(loss.total));
      return;
    }
    for (const Batch& batch : batches) {
      const torch::Tensor loss =
          branches ? BranchingLoss(batch.inputs, random) : model_->Loss(batch.inputs);
      loss.backward();
      losses.push_back(loss.item<float>());
    }
  }
  float Evaluate(uint64_t seed) override {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(seed);
    model_->eval();
    const float loss = model_->Loss(torch::randint(0, 384, {2, 20}, torch::kInt64)).item<float>();
    model_->train();
    return loss;
  }

 private:
  // Blocks are left out or run twice, and parameters are regularised.
  torch::Tensor BranchingLoss(const torch::Tensor& tokens, std::mt19937_64& random) {
    const std::vector<torch::Tensor> parameters = model_->parameters();
    torch::Tensor penalty = torch::zeros({});
    Stream stream = model_->Embed({.inputs = tokens});
    const BatchContext context = model_->ContextOf(stream.hidden);
    for (const std::shared_ptr<Block>& block : model_->blocks()) {
      const uint64_t dice = random() % 6;
      if (dice == 0) continue;
      const auto forward = [&] {
        stream = model_->recompute() ? ForwardRecomputed(block, stream, context)
                                     : block->Forward(stream, context);
      };
      forward();
      if (dice == 1) forward();
      if (dice == 2) penalty = penalty + parameters[random() % parameters.size()].square().mean();
    }
    const Labels all = Labels::AllOf(tokens);
    return model_->LossOf(stream, context, all, LossFactors::OfStep(1, all.count, 1)).Total() +
           penalty;
  }

  const std::unique_ptr<StagedModel> model_;
};

// --- What a run does.

struct StepScript {
  uint64_t seed = 0;
  bool branches = false;
  bool evaluates_within = false;  // Between backward and update.
  int64_t disturbances = 0;       // About so many. Managed training only.
  bool overlap_update = true;
};

std::vector<StepScript> DrawSteps(std::mt19937_64& random) {
  std::vector<StepScript> steps(kSteps);
  for (int i = 0; i < kSteps; ++i) {
    constexpr std::array<int64_t, 3> kDisturbances = {1, 3, 20};
    steps[i].seed = random();
    steps[i].branches = random() % 6 == 0 && i > kTenantStep;
    steps[i].evaluates_within = random() % 6 == 0 && i > kTenantStep;
    if (random() % 3 == 0 && i > kTenantStep) {
      steps[i].disturbances = kDisturbances[random() % kDisturbances.size()];
    }
    steps[i].overlap_update = random() % 4 > 0;
  }
  steps[kTenantStep].disturbances = 3;
  return steps;
}

struct Values {
  std::map<std::string, torch::Tensor> parameters;
  std::map<std::string, torch::Tensor> buffers;
};
Values CloneOf(const torch::nn::Module& module) {
  Values values;
  for (const auto& item : module.named_parameters()) {
    values.parameters[item.key()] = item.value().detach().clone();
  }
  for (const auto& item : module.named_buffers()) {
    values.buffers[item.key()] = item.value().clone();
  }
  return values;
}

OptimizerSpec Optimizer() {
  OptimizerSpec spec;
  spec.learning_rate = 2e-3;
  return spec;
}

// What plain training leaves: of the steps, and at the end.
struct PlainRun {
  std::vector<float> losses;
  std::vector<Values> before_step;             // And after the last.
  std::vector<ReferenceAdamW::State> moments;  // As UniqueParameters.
};

template <typename StepFunction>
void RunSteps(
    Job& job, const std::vector<StepScript>& steps, ActivationStore& activations,
    std::vector<float>& losses, StepFunction update,
    const std::function<void(int)>& begin = [](int) {}, const std::function<void()>& end = [] {}) {
  for (int i = 0; i < kSteps; ++i) {
    job.module().zero_grad();
    begin(i);
    job.ForwardBackward(steps[i].seed, steps[i].branches, activations, losses);
    if (steps[i].evaluates_within) losses.push_back(job.Evaluate(steps[i].seed + 1));
    end();
    if (::testing::Test::HasFatalFailure()) return;
    update(steps[i]);
    if (::testing::Test::HasFatalFailure()) return;
    if (i % 3 == 2) {
      begin(i + 1);
      losses.push_back(job.Evaluate(steps[i].seed + 2));
      end();
    }
  }
}

PlainRun RunPlain(Job& job, const std::vector<StepScript>& steps) {
  PlainRun run;
  ActivationsInPlace activations;
  ReferenceAdamW optimizer(UniqueParameters(job.module()), Optimizer());
  run.before_step.push_back(CloneOf(job.module()));
  RunSteps(job, steps, activations, run.losses, [&](const StepScript&) {
    optimizer.Step(kMaxNorm);
    run.before_step.push_back(CloneOf(job.module()));
  });
  run.moments = optimizer.states();
  return run;
}

// Of all runs of a model.
struct Totals {
  int64_t rounds = 0;
  int64_t planned_rounds = 0;
  std::array<int64_t, kNumDivergences> divergences = {};
  std::array<int64_t, RandomDisturbances::kNumKinds> disturbances = {};
  int64_t tenants_admitted = 0;
};

template <typename MakeJob>
class DisturbedParity : public TrainingTest {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    std::string pattern = ::testing::TempDir() + "parityXXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    std::filesystem::create_directory(directory_ + "/state");
    std::filesystem::create_directory(directory_ + "/nvme");
  }
  void TearDown() override {
    session_.reset();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void OpenServer(const TrainingOptions& options) {
    session_.reset();
    server_.reset();
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kDevice] = options.device_memory;
    server_options.capacity_bytes[Tier::kHost] = options.host_memory;
    if (options.nvme_memory > 0) {
      server_options.nvme_directories = {{directory_ + "/nvme", options.nvme_memory}};
    }
    server_options.state_directory = directory_ + "/state";  // Measures the machine once.
    server_options.epoch_timeout = absl::Seconds(60);        // Somebody may hold what is to leave.
    ASSERT_OK_AND_ASSIGN(server_, server::EmbeddedServer::Start(server_options));
  }

  // Trains in a session and compares with what plain training left.
  // Disturbs it where the steps say so, with other jobs of up to `largest_tenant` bytes; not if
  // `operators_a_step` is 0.
  void RunManaged(const TrainingOptions& options, const std::vector<StepScript>& steps,
                  const PlainRun& plain, uint64_t seed, int64_t operators_a_step,
                  int64_t largest_tenant, Totals& totals, TrainingStats& stats) {
    torch::manual_seed(seed);
    MakeJob job;
    RandomDisturbances disturbances(seed);
    OpenServer(options);
    if (HasFatalFailure()) return;
    ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
    ASSERT_OK_AND_ASSIGN(session_, TrainingSession::Open(std::move(socket), options));
    ManageOptions manage;
    manage.space_name = absl::StrCat("seed", seed);
    manage.host_memory = options.host_memory - kActivationBytes;
    ASSERT_OK_AND_ASSIGN(ManagedModel* const model,
                         session_->Manage(job.module(), Optimizer(), manage));
    std::vector<float> losses;
    {
      SecondTenant tenant(*server_, options.label);
      disturbances.Attach(*session_, *model, &tenant, largest_tenant);
      ASSERT_OK_AND_ASSIGN(
          auto offloaded,
          OffloadedTensors::Open(session_->session(), {.space_name = "activations",
                                                       .keep_bytes = 16 * kKiB,
                                                       .host_bytes = kActivationBytes}));
      ManagedActivations activations(std::move(offloaded));
      std::vector<RandomDisturbances::Look> looks;
      const auto begin = [&](int step) {
        looks.clear();
        for (const auto& item : job.module().named_parameters()) {
          looks.push_back(
              {item.key(), item.value(), plain.before_step[step].parameters.at(item.key())});
        }
        if (step == kSteps || operators_a_step == 0 || steps[step].disturbances == 0) return;
        disturbances.Start(
            operators_a_step / steps[step].disturbances, &looks,
            step == kTenantStep ? std::optional(RandomDisturbances::Kind::kTenant) : std::nullopt);
      };
      RunSteps(
          job, steps, activations, losses,
          [&](const StepScript& step) {
            StepOptions step_options;
            step_options.max_grad_norm = kMaxNorm;
            step_options.overlap_update = step.overlap_update;
            ASSERT_OK(model->Step(step_options));
          },
          begin, [&] { disturbances.Stop(); });
      if (HasFatalFailure()) return;
      // Who still waits is answered between operators.
      while (!tenant.Look()) job.module().parameters()[0].sum();
      tenant.Leave();
      totals.tenants_admitted += tenant.admitted();
    }
    ExpectSame(job, *model, losses, plain);
    EXPECT_OK(session_->status());
    EXPECT_EQ(GetAllocationStats().over_budget, 0);
    EXPECT_EQ(GetAllocationStats().refused, 0);
    stats = session_->stats();
    EXPECT_LE(stats.device_peak_bytes, options.device_memory);
    totals.rounds += stats.phases.rounds;
    totals.planned_rounds += stats.phases.planned_rounds;
    for (size_t i = 0; i < kNumDivergences; ++i) {
      totals.divergences[i] += stats.phases.divergences[i];
    }
    for (size_t i = 0; i < disturbances.counts().size(); ++i) {
      totals.disturbances[i] += disturbances.counts()[i];
    }
    EXPECT_OK(session_->Close());
  }

  void ExpectSame(Job& job, ManagedModel& model, const std::vector<float>& losses,
                  const PlainRun& plain) {
    EXPECT_EQ(losses, plain.losses);
    const Values& expected = plain.before_step.back();
    for (const auto& item : job.module().named_parameters()) {
      EXPECT_TRUE(item.value().equal(expected.parameters.at(item.key()))) << item.key();
    }
    for (const auto& item : job.module().named_buffers()) {
      EXPECT_TRUE(item.value().equal(expected.buffers.at(item.key()))) << item.key();
    }
    std::vector<at::Tensor> unique = UniqueParameters(job.module());
    for (const ManagedTensorInfo& info : model.tensors()) {
      if (info.group != TensorGroup::kTrainable) continue;
      const at::Tensor parameter = job.module().named_parameters()[info.name];
      const auto found = std::ranges::find_if(
          unique, [&](const at::Tensor& other) { return other.is_same(parameter); });
      ASSERT_NE(found, unique.end()) << info.name;
      const ReferenceAdamW::State& state = plain.moments[found - unique.begin()];
      EXPECT_THAT(model.TensorStep(info.name), IsOkAndHolds(state.step)) << info.name;
      for (const auto& [kind, moments] : {std::pair(ChunkKind::kExpAvg, &state.exp_avg),
                                          std::pair(ChunkKind::kExpAvgSq, &state.exp_avg_sq)}) {
        if (state.step > 0) {
          EXPECT_EQ(ReadAll(model, info.name, kind), *moments) << info.name;
        }
      }
    }
  }

  void Run(uint64_t seed, Totals& totals) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const std::vector<StepScript> steps = DrawSteps(random);
    PlainRun plain;
    int64_t parameter_bytes = 0, largest_bytes = 0;
    {
      torch::manual_seed(seed);
      MakeJob job;
      plain = RunPlain(job, steps);
      if (HasFatalFailure()) return;
      for (const at::Tensor& parameter : UniqueParameters(job.module())) {
        parameter_bytes += static_cast<int64_t>(parameter.nbytes());
        largest_bytes = std::max(largest_bytes, static_cast<int64_t>(parameter.nbytes()));
      }
    }
    TrainingOptions options;
    options.label = "first";
    options.chunk_bytes = (random() % 2 == 0 ? 16 : 64) * kKiB;
    options.device_memory = 64 * kMiB;
    options.host_memory = 64 * kMiB;
    options.policy.kind = PolicyKind::kOnline;
    // With room for everything and nothing in its way: what it needs at least.
    Totals undisturbed;
    TrainingStats stats;
    RunManaged(options, steps, plain, seed, 0, 0, undisturbed, stats);
    if (HasFatalFailure()) return;

    // A fetch that is held and a look come on top of what its operators pin.
    const int64_t needed = RoundUp(stats.non_model_peak_bytes, options.chunk_bytes) +
                           stats.pinned_peak_bytes +
                           2 * (RoundUp(largest_bytes, options.chunk_bytes) + options.chunk_bytes);
    const int64_t spare =
        RoundUp(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(parameter_bytes)),
                options.chunk_bytes);
    options.device_memory = needed + spare;
    if (random() % 3 == 0) {
      options.host_memory = RoundUp(parameter_bytes * 4 / 3, options.chunk_bytes) +
                            (SpareSlots({}) + 4) * options.chunk_bytes + kActivationBytes;
      options.nvme_memory = 64 * kMiB;
    }
    constexpr std::array<int64_t, 4> kBandwidths = {0, 0, 2'000'000'000, 300'000'000};
    options.device_bandwidth = kBandwidths[random() % kBandwidths.size()];
    constexpr std::array<PolicyOptions, 10> kPolicies = {{{PolicyKind::kAuto},
                                                          {PolicyKind::kAuto},
                                                          {PolicyKind::kAuto},
                                                          {PolicyKind::kAuto},
                                                          {PolicyKind::kStatic, 0.3},
                                                          {PolicyKind::kStatic, 0, 0.1},
                                                          {PolicyKind::kStatic, 0.1, 0.3},
                                                          {PolicyKind::kCpu},
                                                          {PolicyKind::kCuda},
                                                          {PolicyKind::kOnline}}};
    options.policy = kPolicies[random() % kPolicies.size()];
    // Without plans the server does not know what else it could do with.
    const int64_t largest_tenant = options.policy.kind == PolicyKind::kOnline ? 0 : spare;
    RunManaged(options, steps, plain, seed, stats.operators / kSteps, largest_tenant, totals,
               stats);
  }

  static constexpr int64_t kActivationBytes = 2 * kMiB;
  std::string directory_;
};

using Jobs = ::testing::Types<LanguageModelJob<kGpt2>, LanguageModelJob<kOpt>,
                              LanguageModelJob<kOptPostNorm>, SmallJob<Transformer>,
                              SmallJob<ConvNet>, SmallJob<Wide>>;
class JobNames {
 public:
  template <typename Type>
  static std::string GetName(int index) {
    constexpr std::array<const char*, 6> kNames = {"Gpt2",        "Opt",     "OptPostNorm",
                                                   "Transformer", "ConvNet", "Wide"};
    return kNames[index];
  }
};
TYPED_TEST_SUITE(DisturbedParity, Jobs, JobNames);

TYPED_TEST(DisturbedParity, IsBitEqualToPlainTraining) {
  Totals totals;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    this->Run(seed, totals);
    if (this->HasFatalFailure()) return;
  }
  std::printf("%ld of %ld rounds followed their plan; left for", totals.planned_rounds,
              totals.rounds);
  for (int i = 0; i < kNumDivergences; ++i) {
    std::printf(" %s %ld", std::string(DivergenceName(static_cast<Divergence>(i))).c_str(),
                totals.divergences[i]);
  }
  std::printf("; %ld looks, %ld tenants\n", totals.disturbances[0], totals.tenants_admitted);
  // The test is of plans that are followed, and of what ends them.
  EXPECT_GT(totals.planned_rounds, kSeeds);
  EXPECT_GT(totals.divergences[static_cast<size_t>(Divergence::kOperator)], 0);
  EXPECT_GT(totals.divergences[static_cast<size_t>(Divergence::kBudget)], 0);
  EXPECT_GT(totals.tenants_admitted, 0);
  for (const int64_t count : totals.disturbances) EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace gemini::trainer
