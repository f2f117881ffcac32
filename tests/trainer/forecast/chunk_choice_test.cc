// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/chunk_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// GPT-2 of 4 blocks of width 256, its vocabulary 4,096: 17 MiB of parameters. A step needs 12 MiB
// of DEVICE, where the two gradients of the tied table are added.
class ChunkChoiceTest : public ::testing::Test {
 protected:
  ChunkChoiceTest() {
    model_ = ParseHfConfig(R"({"model_type":"gpt2","vocab_size":4096,"n_embd":256,"n_layer":4,
                               "n_head":4})",
                           "config")
                 ->spec;
    config_.batch = 1;
    config_.sequence = 16;
  }

  ChunkChoice Choose() const {
    return ChooseChunkSize({.config = config_,
                            .model = model_,
                            .device_bytes = device_bytes_,
                            .context_bytes = context_bytes_,
                            .compute = compute_,
                            .links = links_,
                            .most_chunk_bytes = most_chunk_bytes_});
  }

  ModelSpec model_;
  absl::StatusOr<ComputeRate> compute_ =
      ComputeRate{.flops_per_second = 1e12, .memory_bytes_per_second = 1e11};
  RunConfig config_;
  CostModel links_ = {
      .host_to_device = 1e9, .device_to_host = 1e9, .update_elements_per_second = 1e9};
  int64_t device_bytes_ = 15 * kMiB;
  int64_t context_bytes_ = 0;
  int64_t most_chunk_bytes_ = 2 * kMiB;
};

TEST_F(ChunkChoiceTest, WithoutALatencySmallChunksLeaveTheMostOfDeviceToKeep) {
  links_.copy_latency_ns = 0;
  const ChunkChoice choice = Choose();
  EXPECT_LE(choice.chunk_bytes, 256 * kKiB) << choice.reason;
  EXPECT_THAT(choice.reason, AllOf(HasSubstr("chunks of "), HasSubstr("predicted to take"),
                                   HasSubstr("; with "), HasSubstr("1 MiB 0.")));
}

TEST_F(ChunkChoiceTest, WithALongLatencyLargeChunksWin) {
  links_.copy_latency_ns = 5'000'000;
  const ChunkChoice choice = Choose();
  EXPECT_GE(choice.chunk_bytes, kMiB) << choice.reason;
}

TEST_F(ChunkChoiceTest, ASlowLinkOfTheCommandLineComesBeforeTheModels) {
  EXPECT_THAT(Choose().reason, HasSubstr("predicted to take 0.0"));
  config_.device_bandwidth = 1'000'000;  // The model alone takes 17 s so.
  EXPECT_THAT(Choose().reason, ContainsRegex("predicted to take [1-9][0-9]\\.[0-9] s"));
}

TEST_F(ChunkChoiceTest, WhereTheRateIsNotKnownTheBudgetDecidesAndTheFloorIsKnown) {
  compute_ = absl::UnavailableError("the GPU fell asleep");
  EXPECT_EQ(Choose().chunk_bytes, most_chunk_bytes_);
  EXPECT_THAT(Choose().reason, HasSubstr("no step can be predicted: the GPU fell asleep"));
  EXPECT_TRUE(Choose().floor.has_value());
  EXPECT_TRUE(Choose().rounds.empty());
}

TEST_F(ChunkChoiceTest, OfAGpuAStepIsPredictedBesideTheContextAndNoneIsForetold) {
  config_.device = "cuda:0";
  config_.vocabulary_blocks = 1;  // Else more DEVICE makes fewer of them.
  const ChunkChoice alone = Choose();
  EXPECT_THAT(alone.reason, HasSubstr("predicted to take"));
  EXPECT_TRUE(alone.rounds.empty());
  device_bytes_ += 100 * kMiB;
  const ChunkChoice with_more = Choose();
  EXPECT_NE(with_more.reason, alone.reason);
  context_bytes_ = 100 * kMiB;
  const ChunkChoice beside = Choose();
  EXPECT_EQ(beside.reason, alone.reason);
  EXPECT_EQ(beside.floor->bytes(), alone.floor->bytes() + context_bytes_);
}

TEST_F(ChunkChoiceTest, TheWholeStepIsForetoldIfItIsNotTooLong) {
  config_.vocabulary_blocks = 1;                          // So that tensor 1 is what it is below.
  for (const int64_t accumulate : {1, 3, 4, 32, 3000}) {  // Of some 70 operators each.
    config_.accumulate = accumulate;
    const ChunkChoice choice = Choose();
    ASSERT_EQ(choice.rounds.size(), accumulate < 3000 ? 1u : 0u) << accumulate;
    if (choice.rounds.empty()) continue;
    const auto looks_up = [](const TensorUse& use) {
      return use.tensor == 1 && use.kind == ChunkKind::kParam;  // Positions.
    };
    EXPECT_EQ(std::ranges::count_if(choice.rounds[0].uses, looks_up), accumulate);
  }
  config_.accumulate = 2;
  EXPECT_EQ(Choose().rounds.size(), 1u);
  config_.precision = "fp16";
  EXPECT_TRUE(Choose().rounds.empty());
  config_.precision = "fp32";
  config_.policy = "online";
  EXPECT_TRUE(Choose().rounds.empty());
  config_.policy = "auto";
  config_.micro_batch_schedule = "vertical";
  EXPECT_TRUE(Choose().rounds.empty());
}

TEST_F(ChunkChoiceTest, AnEvaluationIsForetoldWhereThereIsOne) {
  config_.accumulate = 2;
  config_.eval_data = "tokens.npy";
  const ChunkChoice choice = Choose();
  ASSERT_EQ(choice.rounds.size(), 2u);
  const Trace& evaluation = choice.rounds[1];
  EXPECT_EQ(evaluation.phase, "eval");
  EXPECT_TRUE(evaluation.updated.empty());
  EXPECT_LT(3 * evaluation.num_positions(), choice.rounds[0].num_positions());
}

TEST_F(ChunkChoiceTest, WhatRoutersMayDealHasRoomInStepsAndPlannedEvaluations) {
  model_ = ParseHfConfig(R"({"model_type":"qwen3_moe","vocab_size":512,"hidden_size":64,
                             "num_hidden_layers":2,"num_attention_heads":4,"head_dim":16,
                             "num_key_value_heads":2,"moe_intermediate_size":32,"num_experts":8,
                             "num_experts_per_tok":2})",
                         "config")
               ->spec;
  config_.eval_data = "tokens.npy";
  config_.experts = "planned";
  const ChunkChoice choice = Choose();
  ASSERT_EQ(choice.rounds.size(), 2u);
  for (const Trace& round : choice.rounds) {
    ASSERT_EQ(round.room_bytes.size(), round.operators.size());
    EXPECT_GT(*std::ranges::max_element(round.room_bytes), 0);
  }
  config_.experts = "routed";
  EXPECT_EQ(Choose().rounds.size(), 1u);
}

TEST_F(ChunkChoiceTest, WhatIsAskedForIsTaken) {
  config_.chunk_size = 8 * kMiB;
  EXPECT_EQ(Choose().chunk_bytes, 8 * kMiB);
}

TEST_F(ChunkChoiceTest, WithoutAPredictionTheBudgetDecidesAndTheReasonSaysWhy) {
  config_.policy = "online";
  EXPECT_EQ(Choose().chunk_bytes, most_chunk_bytes_);
  EXPECT_THAT(Choose().reason, HasSubstr("policy online has no plan"));
  config_.policy = "auto";
  device_bytes_ = kMiB;
  EXPECT_EQ(Choose().chunk_bytes, 64 * kKiB);
  EXPECT_THAT(Choose().reason, HasSubstr("needs more DEVICE in larger ones"));
  device_bytes_ = 15 * kMiB;
  config_.sequence = 2000;  // The model has 1,024 positions.
  EXPECT_EQ(Choose().chunk_bytes, most_chunk_bytes_);
  EXPECT_THAT(Choose().reason, HasSubstr("no step can be predicted"));
}

TEST_F(ChunkChoiceTest, EachFamilyHasAForecast) {
  for (const char* type : {"llama", "mixtral", "gemma2", "opt"}) {
    model_ = ParseHfConfig(absl::StrCat(R"({"model_type":")", type,
                                        R"(","vocab_size":512,"hidden_size":64,"ffn_dim":128,
                                            "word_embed_proj_dim":64,"intermediate_size":128,
                                            "num_hidden_layers":3,"num_attention_heads":4,
                                            "num_key_value_heads":4,"head_dim":16})"),
                           "config")
                 ->spec;
    EXPECT_THAT(Choose().reason, HasSubstr("predicted to take")) << type;
    EXPECT_TRUE(Choose().floor.has_value()) << type;
  }
  config_.chunk_size = 256 * kKiB;
  EXPECT_EQ(Choose().chunk_bytes, 256 * kKiB);
  EXPECT_EQ(Choose().reason, "chunks of 256 KiB, as asked for");
}

TEST_F(ChunkChoiceTest, ABudgetBelowTheFloorIsRefusedWithItsOperatorAndTheFloorFits) {
  for (const char* policy : {"auto", "online", "cuda"}) {
    for (const int64_t chunk_size : {kAutoBytes, 256 * kKiB}) {
      config_.policy = policy;
      config_.chunk_size = chunk_size;
      device_bytes_ = kMiB;
      const ChunkChoice below = Choose();
      ASSERT_TRUE(below.floor.has_value());
      const int64_t floor_bytes = below.floor->bytes();
      EXPECT_THAT(CheckDeviceFloor(below, device_bytes_),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           AllOf(HasSubstr(below.floor->who), HasSubstr("raise --device-memory"),
                                 HasSubstr(absl::StrCat("(", floor_bytes, " bytes)")))));
      // What it names is enough, also where the search then takes other chunks.
      device_bytes_ = floor_bytes;
      EXPECT_OK(CheckDeviceFloor(Choose(), device_bytes_)) << policy << ' ' << chunk_size;
      device_bytes_ = floor_bytes - 1;
      EXPECT_FALSE(CheckDeviceFloor(Choose(), device_bytes_).ok()) << policy << ' ' << chunk_size;
    }
  }
}

TEST_F(ChunkChoiceTest, WhereLargeChunksDoNotFitSmallerOnesAreTaken) {
  config_.policy = "online";
  most_chunk_bytes_ = 16 * kMiB;
  device_bytes_ = 15 * kMiB;
  const ChunkChoice choice = Choose();
  EXPECT_LT(choice.chunk_bytes, most_chunk_bytes_) << choice.reason;
  EXPECT_OK(CheckDeviceFloor(choice, device_bytes_));
}

}  // namespace
}  // namespace gemini::trainer
