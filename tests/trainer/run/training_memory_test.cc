// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/training_memory.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/communicator_dry.h"
#include "trainer/parallel/model_of_ranks.h"
#include "trainer/parallel/stage_dealing.h"

namespace gemini::trainer {
namespace {

using policies::TensorMode;

// GPT-2 medium: 354 M parameters. Its vocabulary is padded by none of the modes.
constexpr char kMedium[] =
    R"({"model_type":"gpt2","vocab_size":50304,"n_positions":128,"n_embd":1024,"n_layer":24,
        "n_head":16})";
constexpr int64_t kElements = (int64_t{50304} + 128) * 1024 + 24 * (12 * 1024 + 13) * 1024 + 2048;

struct Sharing {
  const char* name;
  TensorMode mode = TensorMode::k1d;
  int64_t tensor = 1;
  int64_t depth = 1;
  int64_t data = 1;
  UnitDivision division = UnitDivision::kReplicas;
  int64_t shares = 1;  // A rank has one of so many of the model.
  const char* precision = "fp32";
  // Of an element: its value, gradient and two moments, and the rest of a value of 16 bits.
  int64_t bytes = 16;
};

class PlanForShardsTest : public ::testing::TestWithParam<Sharing> {};

TEST_P(PlanForShardsTest, HostIsTheRanksShareOfTheModel) {
  const Sharing& sharing = GetParam();
  const int64_t num_ranks = sharing.tensor * sharing.data;
  const RankLayout layout(*policies::Mesh::Make(num_ranks, {.tensor = sharing.tensor}),
                          *policies::TensorGrid::Make(sharing.mode, sharing.tensor, sharing.depth));
  RunConfig config;
  config.batch = 8;
  config.sequence = 32;
  config.precision = sharing.precision;
  config.device_memory = int64_t{8} << 30;
  const ModelSpec spec = ParseHfConfig(kMedium, "config")->spec;
  int64_t most = 0, all = 0;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    CommunicatorDry communicator(rank, num_ranks);
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredModel> model,
        MakeModelOfRank(spec, sharing.bytes == 16 ? torch::kFloat32 : torch::kBFloat16,
                        communicator, layout,
                        {.division = sharing.division,
                         .block_elements = ShardBlockElements(MomentFormat::kFp32)}));
    ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanForShards(config, *model, layout, rank,
                                                              /*available=*/int64_t{32} << 30));
    most = std::max(most, plan.bytes[Tier::kHost]);
    all += plan.bytes[Tier::kHost];
  }
  // Chunks are 2 to 4% of a rank's memory, by their number: what their ends leave, and spare ones.
  const double share =
      static_cast<double>(sharing.bytes * kElements) / static_cast<double>(sharing.shares);
  RecordProperty("most_of_share", std::to_string(static_cast<double>(most) / share));
  EXPECT_LE(static_cast<double>(most), 1.03 * share) << static_cast<double>(most) / share;
  EXPECT_GE(static_cast<double>(all) / static_cast<double>(num_ranks), share);
}

const Sharing kSharings[] = {
    {.name = "line_of_2", .tensor = 2, .shares = 2},
    {.name = "line_of_4", .tensor = 4, .shares = 4},
    {.name = "line_of_2_bf16", .tensor = 2, .shares = 2, .precision = "bf16", .bytes = 14},
    {.name = "square", .mode = TensorMode::k2d, .tensor = 4, .shares = 4},
    {.name = "squares", .mode = TensorMode::k2Point5d, .tensor = 8, .depth = 2, .shares = 4},
    {.name = "squares_in_shards",
     .mode = TensorMode::k2Point5d,
     .tensor = 8,
     .depth = 2,
     .division = UnitDivision::kShards,
     .shares = 8},
    {.name = "cube", .mode = TensorMode::k3d, .tensor = 8, .shares = 8},
    {.name = "lines_in_shards",
     .tensor = 2,
     .data = 2,
     .division = UnitDivision::kShards,
     .shares = 4}};

INSTANTIATE_TEST_SUITE_P(Sharings, PlanForShardsTest, ::testing::ValuesIn(kSharings),
                         [](const auto& one) { return one.param.name; });

// A deep model with small tables, so that stages are alike: 24 blocks, of four matrices of
// attention and three of an MLP.
constexpr char kDeep[] =
    R"({"model_type":"llama","vocab_size":512,"max_position_embeddings":128,"hidden_size":768,
        "intermediate_size":2112,"num_hidden_layers":24,"num_attention_heads":12,
        "num_key_value_heads":12})";
constexpr int64_t kDeepElements = 2 * 512 * 768 + 24 * (4 * 768 * 768 + 3 * 768 * 2112);

struct Stages {
  int64_t pipeline = 1;
  int64_t tensor = 1;
  int64_t data = 1;
  int64_t zero = 0;
};

class PlanForStagesTest : public ::testing::TestWithParam<Stages> {};

// By the rows of figure 1 of Rajbhandari et al., arXiv:1910.02054, with fp32: an element's value,
// gradient and moments are 16 bytes. Beside its shard of them a rank of stages 1 and 2 has all
// values, and one of stage 1 all gradients.
TEST_P(PlanForStagesTest, HostIsTheStagesShareOfTheModel) {
  const Stages& c = GetParam();
  const int64_t num_ranks = c.pipeline * c.tensor * c.data;
  const RankLayout layout(
      *policies::Mesh::Make(num_ranks, {.pipeline = c.pipeline, .tensor = c.tensor}),
      *policies::TensorGrid::Make(TensorMode::k1d, c.tensor, 1));
  const ModelSpec spec = ParseHfConfig(kDeep, "config")->spec;
  RunConfig config;
  config.sequence = 32;
  config.device_memory = int64_t{8} << 30;
  const UnitDivision division = c.zero == 0   ? UnitDivision::kReplicas
                                : c.zero == 3 ? UnitDivision::kShards
                                              : UnitDivision::kShardsAndWhole;
  const GradientSync sync = c.zero == 1 ? GradientSync::kLast : GradientSync::kEach;
  const int64_t whole_bytes = c.zero == 1 ? 8 : c.zero == 2 ? 4 : 0;
  const double bytes =
      static_cast<double>(whole_bytes) + 16.0 / static_cast<double>(c.zero == 0 ? 1 : c.data);
  const double share =
      bytes * static_cast<double>(kDeepElements) / static_cast<double>(c.pipeline * c.tensor);
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    CommunicatorDry communicator(rank, num_ranks);
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredModel> model,
        MakeModelOfRank(spec, torch::kFloat32, communicator, layout,
                        {.division = division,
                         .sync = sync,
                         .block_elements = ShardBlockElements(MomentFormat::kFp32)},
                        *DealStages(spec, config.sequence, {.ranks = c.pipeline}, "")));
    ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanForShards(config, *model, layout, rank,
                                                              /*available=*/int64_t{32} << 30));
    const double of_share = static_cast<double>(plan.bytes[Tier::kHost]) / share;
    RecordProperty("of_share", std::to_string(of_share));
    EXPECT_NEAR(of_share, 1, 0.03) << rank;
  }
}

std::vector<Stages> AllStages() {
  std::vector<Stages> all;
  for (const int64_t pipeline : {2, 4}) {
    for (const int64_t tensor : {1, 2}) {
      all.push_back({.pipeline = pipeline, .tensor = tensor});
      for (const int64_t zero : {1, 2, 3}) {
        all.push_back({.pipeline = pipeline, .tensor = tensor, .data = 2, .zero = zero});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Meshes, PlanForStagesTest, ::testing::ValuesIn(AllStages()),
                         [](const auto& one) {
                           const Stages& c = one.param;
                           return absl::StrCat("pp", c.pipeline, "_tp", c.tensor, "_dp", c.data,
                                               "_zero", c.zero);
                         });

}  // namespace
}  // namespace gemini::trainer
