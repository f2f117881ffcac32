// SPDX-License-Identifier: Apache-2.0
// A dry run of a rank against the same rank in a thread, which exchanges with others, and against
// the session of a run, which has its values in HOST.
#include "trainer/forecast/rank_step.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gemini/device_shortage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/communicator_dry.h"
#include "trainer/parallel/parameter_store_ranks.h"
#include "trainer/parallel/part_of_run.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_losses.h"
#include "trainer/run/training_memory.h"

namespace gemini::trainer {
namespace {

using policies::RankAction;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kLlama[] =
    R"({"model_type":"llama","vocab_size":304,"max_position_embeddings":32,"hidden_size":64,
        "intermediate_size":256,"num_hidden_layers":4,"num_attention_heads":4,
        "num_key_value_heads":2})";
constexpr char kGpt2[] =  // Its head is the table of its embeddings.
    R"({"model_type":"gpt2","vocab_size":304,"n_positions":32,"n_embd":64,"n_layer":4,"n_head":4,
        "resid_pdrop":0,"embd_pdrop":0,"attn_pdrop":0})";

const RankStepRates kRates = {
    .compute = {.flops_per_second = 1e10, .memory_bytes_per_second = 1e10, .kernel_ns = 2000},
    .link = {.latency_seconds = 1e-5, .bytes_per_second = 2e9},
    .sum_bytes_per_second = 4e9,
    .copy_bytes_per_second = 3e9,
    .device_update_elements_per_second = 3e8,
    .update_elements_per_second = 3e8,
    .processors = 2};

struct Case {
  const char* name;
  const char* json;
  int64_t num_ranks;
  RunConfig config;
};

RunConfig Config(void (*change)(RunConfig&)) {
  RunConfig config;
  config.batch = 2;
  config.sequence = 32;
  config.device_memory = int64_t{256} << 20;
  config.threads = 1;
  change(config);
  return config;
}

// The forward and backward passes of a step and what ranks tell each other behind them.
SentByKind SentInThread(Communicator& me, const ModelSpec& spec, const RunConfig& config,
                        const RankLayout& layout) {
  const ModelStages stages = *StagesOfRun(spec, config, layout);
  const PartOfRun part = *MakePartOfRun(spec, config, layout, stages, me, torch::kCPU);
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : part.model->parameters()) parameter.zero_();
  }
  const SentByKind before = me.sent_by_kind();
  const torch::Tensor tokens = torch::zeros({config.batch, config.sequence}, torch::kInt64);
  const Batch batch = {.inputs = tokens, .labels = Labels::OfTask(spec.task, tokens)};
  if (part.stage != nullptr) {
    const std::vector<Batch> batches(static_cast<size_t>(config.accumulate), batch);
    EXPECT_OK(part.stage->Run({batches, LossFactors(), [](int64_t) { return DropoutDraw(); },
                               [](int64_t, double) { return absl::OkStatus(); }}));
  } else {
    for (int64_t i = 0; i < config.accumulate; ++i) {
      part.model->set_last_micro_batch(i + 1 == config.accumulate);
      part.model->Losses(batch, LossFactors()).Backward(LossFactors());
    }
  }
  EXPECT_OK(GatherLosses(RankAgreement(me), {}));
  RankStepExchange exchange = StepExchangeOf(*part.model, me, layout);
  EXPECT_OK(exchange.AgreeOnNorm(client::SquaresByTensor()));
  return SentSince(before, me.sent_by_kind());
}

// Returns the HOST that the spaces of a run have of its server, for the values of a rank. A process
// has one session at a time, so ranks are opened one after another, and exchange nothing.
int64_t HostOfRun(const ModelSpec& spec, const RunConfig& config, const RankLayout& layout,
                  int64_t rank) {
  CommunicatorDry communicator(rank, layout.num_ranks());
  const ModelStages stages = *StagesOfRun(spec, config, layout);
  const PartOfRun part = *MakePartOfRun(spec, config, layout, stages, communicator, torch::kCPU);
  TrainingMemory memory;
  EXPECT_OK(OpenShards(config, TrainingDevice(), *part.model, communicator, layout,
                       /*available=*/int64_t{1} << 30, memory));
  return memory.store == nullptr ? 0 : memory.store->usage().host_bytes;
}

class RankStepTest : public ::testing::TestWithParam<Case> {};

TEST_P(RankStepTest, SendsWhatTheRankSendsAndAsksForWhatItAsksFor) {
  const Case& c = GetParam();
  const ModelSpec spec = ParseHfConfig(c.json, "config")->spec;
  ASSERT_OK_AND_ASSIGN(const RankLayout layout, LayoutOf(c.config, c.num_ranks));
  std::vector<SentByKind> sent(static_cast<size_t>(c.num_ranks));
  RunThreadRanks(c.num_ranks, [&](Communicator& me) {
    torch::set_num_threads(1);
    sent[static_cast<size_t>(me.rank())] = SentInThread(me, spec, c.config, layout);
  });
  int64_t most_host = 0;
  for (int64_t rank = 0; rank < c.num_ranks; ++rank) {
    SCOPED_TRACE(rank);
    ASSERT_OK_AND_ASSIGN(const RankStep step,
                         ForetellRankStep(spec, c.config, layout, rank, kRates));
    EXPECT_EQ(step.sent, sent[static_cast<size_t>(rank)]);
    EXPECT_EQ(step.host_bytes, HostOfRun(spec, c.config, layout, rank));
    EXPECT_GT(step.device_peak_bytes, 0);
    most_host = std::max(most_host, step.host_bytes);
    double computing = 0;
    for (const RankAction& action : step.actions.actions) computing += action.seconds;
    EXPECT_GT(computing, 0);
  }
  ASSERT_OK_AND_ASSIGN(const RanksForecast all,
                       ForetellStepOfRanks(spec, c.config, c.num_ranks, kRates));
  EXPECT_EQ(all.sent, sent[0]);
  EXPECT_EQ(all.host_bytes, most_host);
  EXPECT_GT(all.last.end_seconds, 0);
}

const Case kCases[] = {
    {"shards", kLlama, 2, Config([](RunConfig& c) { c.zero = "3"; })},
    {"shards_ahead", kGpt2, 2, Config([](RunConfig& c) {
       c.zero = "3";
       c.gather_ahead = 1;
       c.recompute = true;
     })},
    {"whole_beside_shards", kGpt2, 2, Config([](RunConfig& c) {
       c.zero = "2";
       c.accumulate = 2;
     })},
    {"added_once", kLlama, 2, Config([](RunConfig& c) {
       c.zero = "1";
       c.accumulate = 3;
     })},
    {"replicas", kLlama, 2, Config([](RunConfig& c) {
       c.zero = "0";
       c.accumulate = 2;
     })},
    {"line", kLlama, 2, Config([](RunConfig& c) { c.tensor = "1d"; })},
    {"parts_of_sequences", kGpt2, 2, Config([](RunConfig& c) {
       c.tensor = "1d";
       c.sequence_parallel = "megatron";
     })},
    {"square", kLlama, 4, Config([](RunConfig& c) { c.tensor = "2d"; })},
    {"ring", kLlama, 2, Config([](RunConfig& c) { c.sequence_parallel = "ring"; })},
    {"ulysses", kLlama, 2, Config([](RunConfig& c) { c.sequence_parallel = "ulysses"; })},
    {"pipeline", kLlama, 2, Config([](RunConfig& c) {
       c.pipeline = 2;
       c.accumulate = 3;
     })},
    {"tied_pipelines", kGpt2, 4, Config([](RunConfig& c) {
       c.pipeline = 2;
       c.accumulate = 2;
     })},
    {"pipeline_of_lines", kLlama, 4, Config([](RunConfig& c) {
       c.pipeline = 2;
       c.tensor = "1d";
       c.accumulate = 4;
     })},
};

INSTANTIATE_TEST_SUITE_P(Meshes, RankStepTest, ::testing::ValuesIn(kCases),
                         [](const auto& at) { return at.param.name; });

TEST(StepOfRanksTest, WhatStepsWaitForIsCounted) {
  const ModelSpec spec = ParseHfConfig(kLlama, "config")->spec;
  const RunConfig pipeline = Config([](RunConfig& c) {
    c.pipeline = 2;
    c.accumulate = 1;
  });
  RankStepRates rates = kRates;
  ASSERT_OK_AND_ASSIGN(const RanksForecast fast, ForetellStepOfRanks(spec, pipeline, 2, rates));
  // One stage waits for the other all the time.
  EXPECT_GT(fast.last.idle_seconds + fast.last.exchange_seconds, fast.last.computing_seconds / 2);
  EXPECT_NEAR(fast.last.sharing_seconds, 0, 1e-9);
  rates.link.latency_seconds = 1;
  ASSERT_OK_AND_ASSIGN(const RanksForecast slow, ForetellStepOfRanks(spec, pipeline, 2, rates));
  // There and back, and what ranks tell each other behind it.
  EXPECT_NEAR(slow.last.end_seconds - fast.last.end_seconds, 4, 0.01);
  rates = kRates;
  rates.processors = 1;
  const RunConfig shards = Config([](RunConfig& c) { c.zero = "3"; });
  ASSERT_OK_AND_ASSIGN(const RanksForecast shared, ForetellStepOfRanks(spec, shards, 2, rates));
  EXPECT_NEAR(shared.last.sharing_seconds, shared.last.computing_seconds,
              0.1 * shared.last.computing_seconds);
}

TEST(StepOfRanksTest, WhatNoDryRunHasIsRefused) {
  const ModelSpec spec = ParseHfConfig(kLlama, "config")->spec;
  EXPECT_THAT(
      ForetellStepOfRanks(spec, Config([](RunConfig& c) { c.micro_batch_schedule = "vertical"; }),
                          2, kRates),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("vertical")));
  EXPECT_THAT(ForetellStepOfRanks(spec, Config([](RunConfig& c) { c.tensor = "1d"; }), 3, kRates),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0: ")));
}

TEST(StepOfRanksTest, ADeviceThatIsTooSmallNamesTheRankThatNeedsMost) {
  const ModelSpec spec = ParseHfConfig(kLlama, "config")->spec;
  RunConfig config = Config([](RunConfig& c) {
    c.pipeline = 2;
    c.accumulate = 2;
    c.device_memory = 4096;
  });
  ASSERT_OK_AND_ASSIGN(const RankLayout layout, LayoutOf(config, 2));
  const auto least_of = [&](int64_t rank) {
    return LeastDeviceBytes(ForetellRankStep(spec, config, layout, rank, kRates).status());
  };
  // The last stage has the head, whose logits are larger than anything of a block.
  ASSERT_GT(least_of(1), least_of(0));
  const absl::Status small = ForetellStepOfRanks(spec, config, 2, kRates).status();
  EXPECT_THAT(small, StatusIs(absl::StatusCode::kResourceExhausted,
                              AllOf(StartsWith("rank 1: DEVICE is "), HasSubstr("4 KiB"))));
  EXPECT_EQ(LeastDeviceBytes(small), least_of(1));
  config.device_memory = *least_of(1) - 1;
  EXPECT_EQ(LeastDeviceBytes(ForetellStepOfRanks(spec, config, 2, kRates).status()), least_of(1));
  config.device_memory = *LeastDeviceBytes(small);
  EXPECT_EQ(LeastDeviceBytes(ForetellStepOfRanks(spec, config, 2, kRates).status()), std::nullopt);
}

}  // namespace
}  // namespace gemini::trainer
