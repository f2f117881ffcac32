// SPDX-License-Identifier: Apache-2.0
// What forecasts of many ranks say by formulas of a block (policies/scaling/unit_cost.h), beside a
// dry run of the rank's own layers: what is kept of it from forward to backward, and how long it
// computes. Two models that differ by two blocks show what one adds.
#include <algorithm>
#include <string>

#include "policies/scaling/unit_cost.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"
#include "trainer/families/sizes_of_spec.h"
#include "trainer/forecast/floor_of_rank.h"
#include "trainer/forecast/traced_step.h"

namespace gemini::trainer {
namespace {

using policies::TensorMode;

// In bf16 on a GPU, whose attention keeps no scores.
constexpr RoundShape kRound = {
    .batch = 8, .sequence = 512, .element = ElementType::kBf16, .counts_kernels = false};
constexpr ComputeRate kRate = {
    .flops_per_second = 1e14, .memory_bytes_per_second = 1e12, .kernel_ns = 0};

struct Sharing {
  const char* name;
  TensorMode mode = TensorMode::k1d;
  int64_t tensor = 1;
  int64_t depth = 1;
  SequenceLayout sequence = {};
  int64_t sequences = 1;
};
constexpr Sharing kSharings[] = {
    {.name = "alone"},
    {.name = "line", .tensor = 4},
    {.name = "megatron", .tensor = 4, .sequence = {SequenceSharing::kMegatron}},
    {.name = "square", .mode = TensorMode::k2d, .tensor = 4},
    {.name = "squares", .mode = TensorMode::k2Point5d, .tensor = 8, .depth = 2},
    {.name = "cube", .mode = TensorMode::k3d, .tensor = 8},
    {.name = "ulysses", .sequence = {SequenceSharing::kUlysses}, .sequences = 4},
    {.name = "ring", .sequence = {SequenceSharing::kRing, /*zigzag=*/true}, .sequences = 4},
};
constexpr const char* kConfigs[] = {
    R"({"model_type":"gpt2","vocab_size":64,"n_positions":512,"n_embd":512,"n_layer":6,"n_head":8,
        "resid_pdrop":0,"embd_pdrop":0,"attn_pdrop":0})",
    R"({"model_type":"llama","vocab_size":64,"max_position_embeddings":512,"hidden_size":512,
        "num_hidden_layers":6,"num_attention_heads":8,"num_key_value_heads":8,
        "intermediate_size":1536})"};

int64_t PeakOf(const NamedTrace& step) {
  int64_t most = 0;
  for (const TracedOperator& at : step.trace.operators) {
    most = std::max(most, at.non_model_peak_bytes);
  }
  return most;
}

double ComputingSecondsOf(const NamedTrace& step) {
  int64_t sum_ns = 0;
  for (const TracedOperator& at : step.trace.operators) sum_ns += at.compute_ns;
  return static_cast<double>(sum_ns) / 1e9;
}

class UnitCostTraceTest : public ::testing::TestWithParam<std::tuple<const char*, Sharing>> {
 protected:
  ModelSpec SpecOf(int64_t num_blocks) const {
    ModelSpec spec = ParseHfConfig(std::get<0>(GetParam()), "config")->spec;
    spec.num_blocks = num_blocks;
    return spec;
  }
  policies::UnitCost CostOf(const policies::Mesh& mesh, const policies::TensorGrid& grid) const {
    const Sharing& sharing = std::get<1>(GetParam());
    const policies::ParallelRun run = {
        .mesh = mesh,
        .grid = grid,
        .divides_sequences = sharing.sequence.sharing == SequenceSharing::kMegatron,
        .is_ring = sharing.sequence.sharing == SequenceSharing::kRing,
        .sequence = kRound.sequence,
        .batch = kRound.batch};
    const policies::RankMachine machine = {
        .flops_per_second = kRate.flops_per_second,
        .memory_bytes_per_second = kRate.memory_bytes_per_second,
        .network = {.ranks_per_node = 8, .within = {0, 1e12}, .between = {0, 1e12}}};
    const policies::ModelSizes sizes = SizesOf(SpecOf(6), kRound.sequence);
    return CostOfBlock(sizes.blocks[0], sizes.width, run, machine, GroupsOf(mesh, grid, 8));
  }
};

TEST_P(UnitCostTraceTest, ABlockKeepsWhatItsDryRunKeeps) {
  const Sharing& sharing = std::get<1>(GetParam());
  const policies::Mesh mesh =
      *policies::Mesh::Make(sharing.tensor * sharing.sequences,
                            {.sequence = sharing.sequences, .tensor = sharing.tensor});
  const policies::TensorGrid grid =
      *policies::TensorGrid::Make(sharing.mode, sharing.tensor, sharing.depth);
  const RankLayout layout(mesh, grid, sharing.sequence);
  ASSERT_OK_AND_ASSIGN(const NamedTrace six, TraceStepOfRank(SpecOf(6), kRound, layout, 0));
  ASSERT_OK_AND_ASSIGN(const NamedTrace four, TraceStepOfRank(SpecOf(4), kRound, layout, 0));
  const double traced = static_cast<double>(PeakOf(six) - PeakOf(four)) / 2;
  const double foretold = CostOf(mesh, grid).kept_bytes;
  EXPECT_NEAR(foretold / traced, 1, 0.15) << "foretold " << foretold << ", traced " << traced;
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<const char*, Sharing>>& one) {
  return std::get<1>(one.param).name;
}
INSTANTIATE_TEST_SUITE_P(Gpt2, UnitCostTraceTest,
                         ::testing::Combine(::testing::Values(kConfigs[0]),
                                            ::testing::ValuesIn(kSharings)),
                         NameOf);
// In grids the RMS norm is ours. Ranks that have layers otherwise are foretold as on a CPU, where
// Torch's keeps copies in fp32.
INSTANTIATE_TEST_SUITE_P(Llama, UnitCostTraceTest,
                         ::testing::Combine(::testing::Values(kConfigs[1]),
                                            ::testing::Values(kSharings[3], kSharings[4],
                                                              kSharings[5])),
                         NameOf);

// One process on a GPU. Ranks' dry runs have no rates.
class UnitOfOneTraceTest : public UnitCostTraceTest {};

TEST_P(UnitOfOneTraceTest, ABlockKeepsAndComputesWhatItsDryRunDoes) {
  ASSERT_OK_AND_ASSIGN(const NamedTrace six, TraceStep(SpecOf(6), kRound, kRate));
  ASSERT_OK_AND_ASSIGN(const NamedTrace four, TraceStep(SpecOf(4), kRound, kRate));
  const policies::UnitCost cost = CostOf(*policies::Mesh::Make(1, {}), policies::TensorGrid());
  const double kept = static_cast<double>(PeakOf(six) - PeakOf(four)) / 2;
  EXPECT_NEAR(cost.kept_bytes / kept, 1, 0.15)
      << "foretold " << cost.kept_bytes << ", traced " << kept;
  const double traced = (ComputingSecondsOf(six) - ComputingSecondsOf(four)) / 2;
  const double foretold = cost.forward.computing_seconds + cost.backward.computing_seconds;
  EXPECT_NEAR(foretold / traced, 1, 0.15) << "foretold " << foretold << ", traced " << traced;
}

INSTANTIATE_TEST_SUITE_P(Gpt2, UnitOfOneTraceTest,
                         ::testing::Combine(::testing::Values(kConfigs[0]),
                                            ::testing::Values(kSharings[0])),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Llama, UnitOfOneTraceTest,
                         ::testing::Combine(::testing::Values(kConfigs[1]),
                                            ::testing::Values(kSharings[0])),
                         NameOf);

}  // namespace
}  // namespace gemini::trainer
