// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/floor_of_rank.h"

#include <string>
#include <tuple>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/layers_beside_one_rank.h"
#include "trainer/parallel/communicator_dry.h"
#include "trainer/parallel/model_of_ranks.h"

namespace gemini::trainer {
namespace {

using policies::TensorMode;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr RoundShape kRound = {.batch = 4, .sequence = 16, .on_cpu = true};

struct Sharing {
  const char* name;
  TensorMode mode = TensorMode::k1d;
  int64_t tensor = 1;
  int64_t depth = 1;
  SequenceLayout sequence = {};
  int64_t sequences = 1;
  int64_t data = 1;

  RankLayout layout() const {
    const policies::Mesh mesh =
        *policies::Mesh::Make(tensor * sequences * data, {.sequence = sequences, .tensor = tensor});
    return RankLayout(mesh, *policies::TensorGrid::Make(mode, tensor, depth), sequence);
  }
};

constexpr Sharing kAlone = {.name = "alone"};
constexpr Sharing kSharings[] = {
    {.name = "line", .tensor = 2},
    {.name = "megatron", .tensor = 2, .sequence = {SequenceSharing::kMegatron}},
    {.name = "ulysses", .sequence = {SequenceSharing::kUlysses}, .sequences = 2},
    {.name = "ring", .sequence = {SequenceSharing::kRing, /*zigzag=*/true}, .sequences = 2},
    {.name = "square", .mode = TensorMode::k2d, .tensor = 4},
    {.name = "squares", .mode = TensorMode::k2Point5d, .tensor = 8, .depth = 2},
    {.name = "cube", .mode = TensorMode::k3d, .tensor = 8},
    {.name = "two_lines", .tensor = 2, .data = 2},
};

DeviceNeed FloorOf(const ModelSpec& spec, const Sharing& sharing, int64_t rank,
                   UnitDivision division, bool knows_step = true) {
  const RankLayout layout = sharing.layout();
  CommunicatorDry communicator(rank, layout.num_ranks());
  const auto model = *MakeModelOfRank(spec, torch::kFloat32, communicator, layout,
                                      {.division = division, .block_elements = 64});
  const absl::StatusOr<NamedTrace> step = TraceStepOfRank(spec, kRound, layout, rank);
  EXPECT_OK(step);
  return FindFloorOfRank(*model, ElementType::kFp32,
                         knows_step && step.ok() ? *step : NamedTrace());
}

class FloorOfRankTest : public ::testing::TestWithParam<std::tuple<std::string, Sharing>> {
 protected:
  const ModelSpec spec_ = SmallModelOf(std::get<0>(GetParam())).spec();
  const Sharing& sharing_ = std::get<1>(GetParam());
};

TEST_P(FloorOfRankTest, AnOperatorOfARankNeedsLessThanThatOfOneThatIsAlone) {
  const DeviceNeed whole = FloorOf(spec_, kAlone, 0, UnitDivision::kReplicas);
  for (int64_t rank = 0; rank < sharing_.layout().num_ranks(); ++rank) {
    const DeviceNeed need = FloorOf(spec_, sharing_, rank, UnitDivision::kReplicas);
    EXPECT_THAT(need.who, MatchesRegex("(forward|backward) of [a-z_]+.*")) << rank;
    EXPECT_GT(need.bytes(), whole.bytes() / (2 * sharing_.layout().num_ranks())) << rank;
    EXPECT_LT(need.bytes(), whole.bytes()) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Sharings, FloorOfRankTest,
                         ::testing::Combine(::testing::Values("gpt2_tied", "llama"),
                                            ::testing::ValuesIn(kSharings)),
                         [](const auto& at) {
                           return std::get<0>(at.param) + "_" + std::get<1>(at.param).name;
                         });

// Lines of ranks share the layers of all tasks.
INSTANTIATE_TEST_SUITE_P(
    Tasks, FloorOfRankTest,
    ::testing::Combine(::testing::Values("bert_masked", "bert_classifier", "llama_classifier"),
                       ::testing::Values(kSharings[0], kSharings[1])),
    [](const auto& at) { return std::get<0>(at.param) + "_" + std::get<1>(at.param).name; });

// The head of this vocabulary needs more than a block.
TEST(FloorOfStagesTest, ARankNeedsWhatItsOwnStagesNeed) {
  for (const char* const name : {"gpt2_tied", "llama"}) {
    SCOPED_TRACE(name);
    ModelSpec spec = SmallModelOf(name).spec();
    spec.vocab_size = 20'000;
    const RankLayout layout(*policies::Mesh::Make(2, {.pipeline = 2}), policies::TensorGrid());
    const int64_t first = spec.num_blocks / 2;
    std::vector<DeviceNeed> needs;
    for (int64_t rank = 0; rank < 2; ++rank) {
      CommunicatorDry communicator(rank, 2);
      ASSERT_OK_AND_ASSIGN(
          const auto model,
          MakeModelOfRank(spec, torch::kFloat32, communicator, layout,
                          {.division = UnitDivision::kReplicas, .block_elements = 64},
                          ModelStages(2, {first, spec.num_blocks - first})));
      ASSERT_OK_AND_ASSIGN(const NamedTrace step, TraceStepOfRank(spec, kRound, layout, rank));
      needs.push_back(FindFloorOfRank(*model, ElementType::kFp32, step));
    }
    const DeviceNeed whole = FloorOf(spec, kAlone, 0, UnitDivision::kReplicas);
    EXPECT_THAT(whole.who, HasSubstr("of lm_head"));
    EXPECT_EQ(needs[1].who, whole.who);
    EXPECT_EQ(needs[1].bytes(), whole.bytes());
    EXPECT_THAT(needs[0].who, Not(HasSubstr("lm_head")));
    EXPECT_LE(needs[0].bytes(), whole.bytes());
    EXPECT_GT(needs[0].bytes(), 0);
  }
}

TEST(FloorOfUnitsTest, AUnitIsThereWholeWhileAnOperatorReadsIt) {
  const ModelSpec spec = SmallModelOf("llama").spec();
  const Sharing apart = {.name = "apart", .data = 2};
  EXPECT_GT(FloorOf(spec, apart, 1, UnitDivision::kShards).bytes(),
            FloorOf(spec, apart, 1, UnitDivision::kReplicas).bytes());
}

TEST(FloorOfUnitsTest, GradientsAndTheirSumAreThereTogether) {
  const ModelSpec spec = SmallModelOf("llama").spec();
  const Sharing apart = {.name = "apart", .data = 2};
  const DeviceNeed sum = FloorOf(spec, apart, 0, UnitDivision::kShards, /*knows_step=*/false);
  EXPECT_EQ(sum.who, "adding up the gradients of block 0");
  // Three matrices of the feed-forward part, and of attention two and two of half as many heads.
  EXPECT_EQ(sum.bytes(), 2 * 4 * (64 * (3 * 256 + 2 * 64 + 2 * 32) + 2 * 64));
  EXPECT_EQ(FloorOf(spec, kAlone, 0, UnitDivision::kReplicas, /*knows_step=*/false).bytes(), 0);
}

}  // namespace
}  // namespace gemini::trainer
