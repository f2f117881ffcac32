// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/unit_cost.h"

#include "gtest/gtest.h"
#include "policies/mesh/tensor_costs.h"
#include "tests/policies/scaling/square_model.h"

namespace gemini::policies {
namespace {

constexpr RankMachine kMachine = {
    .flops_per_second = 1e12,
    .memory_bytes_per_second = 1e15,
    .network = {.ranks_per_node = 8, .within = {0, 1e10}, .between = {0, 1e9}}};

// A micro-batch of 8 sequences of 16 tokens, among the ranks of one grid.
ParallelRun RunOf(TensorMode mode, int64_t ranks, int64_t depth = 1, int64_t sequence_ranks = 1) {
  return {
      .mesh = *Mesh::Make(ranks * sequence_ranks, {.sequence = sequence_ranks, .tensor = ranks}),
      .grid = *TensorGrid::Make(mode, ranks, depth),
      .sequence = 16,
      .batch = 8};
}

UnitCost CostOf(const ParallelRun& run, const RankMachine& machine = kMachine) {
  const ModelSizes model = SquareModel({});
  return CostOfBlock(model.blocks[0], model.width, run, machine,
                     GroupsOf(run.mesh, run.grid, machine.network.ranks_per_node));
}

double BytesOf(const UnitCost& cost) {
  return cost.forward.layers.bytes + cost.backward.layers.bytes;
}

TEST(UnitCostTest, RanksThatShareLayersSendWhatTheirModeSends) {
  const ModelSizes model = SquareModel({});
  for (ParallelRun run :
       {RunOf(TensorMode::k1d, 1), RunOf(TensorMode::k1d, 4), RunOf(TensorMode::k2d, 4),
        RunOf(TensorMode::k2Point5d, 8, 2), RunOf(TensorMode::k3d, 8)}) {
    for (const bool divides : {false, true}) {
      for (const bool recompute : {false, true}) {
        if (divides && run.grid.mode() != TensorMode::k1d) continue;
        run.divides_sequences = divides;
        run.recompute = recompute;
        const TensorPasses passes = {recompute ? 2 : 1, divides};
        double elements = 0;
        for (const MatrixSizes& matrix : model.blocks[0].matrices) {
          const TensorCosts costs =
              ProductCosts(run.grid, {8 * 16, matrix.in, matrix.out, matrix.leads_out}, passes);
          elements += costs.total() - costs.replicas;  // Sums over depth are ZeRO's here.
        }
        EXPECT_NEAR(BytesOf(CostOf(run)), 2 * elements, 1e-9 * elements)
            << TensorModeName(run.grid.mode()) << " " << divides << recompute;
      }
    }
  }
}

TEST(UnitCostTest, RanksThatShareSequencesSendWhatTheirWaySends) {
  ParallelRun run = RunOf(TensorMode::k1d, 1, 1, 4);
  UnitCost cost = CostOf(run);
  const UlyssesCosts ulysses = UlyssesBlockCosts(4, 8 * 16, 64, 64);
  EXPECT_DOUBLE_EQ(cost.forward.sequences.bytes + cost.backward.sequences.bytes,
                   2 * (ulysses.in + ulysses.out));
  run.is_ring = true;
  cost = CostOf(run);
  const RingCosts ring = RingBlockCosts(4, 8 * 16, 64);
  EXPECT_DOUBLE_EQ(cost.forward.sequences.bytes + cost.backward.sequences.bytes,
                   2 * ring.keys + 4 * ring.gradients);  // These are sent in fp32.
}

TEST(UnitCostTest, FewKeyHeadsAreCopied) {
  BlockSizes block = SquareModel({}).blocks[0];
  block.matrices[0] = {.in = 64, .out = 64};
  block.matrices.insert(block.matrices.begin() + 1,
                        {.in = 64, .out = 2 * 16, .shares_exchange = true, .most_parts = 1});
  block.key_width = 16;
  block.num_key_heads = 1;
  const auto cost_of = [&](const ParallelRun& run) {
    return CostOfBlock(block, 64, run, kMachine, GroupsOf(run.mesh, run.grid, 8));
  };
  const UnitCost one = cost_of(RunOf(TensorMode::k1d, 1));
  const UnitCost four = cost_of(RunOf(TensorMode::k1d, 4));
  const double keys = 64 * 32;
  EXPECT_DOUBLE_EQ(four.parameters, (one.parameters - keys) / 4 + keys);
  const double whole = 8 * 16 * 2 * 4 * 64, kept_keys = 8 * 16 * 2 * 32;
  EXPECT_DOUBLE_EQ(four.kept_bytes, whole + (one.kept_bytes - whole - kept_keys) / 4 + kept_keys);
  // Query, key and value read one tensor.
  EXPECT_DOUBLE_EQ(four.backward.layers.bytes,
                   CostOf(RunOf(TensorMode::k1d, 4)).backward.layers.bytes);
  // Each of the ranks that share sequences gets a head of its own.
  const UnitCost shared = cost_of(RunOf(TensorMode::k1d, 1, 1, 4));
  const UlyssesCosts ulysses = UlyssesBlockCosts(4, 8 * 16, 64, 4 * 16);
  EXPECT_DOUBLE_EQ(shared.forward.sequences.bytes + shared.backward.sequences.bytes,
                   2 * (ulysses.in + ulysses.out));
}

TEST(UnitCostTest, HopsOfARingHideUnderAttention) {
  ParallelRun run = RunOf(TensorMode::k1d, 1, 1, 4);
  run.is_ring = true;
  RankMachine machine = kMachine;
  EXPECT_GT(CostOf(run, machine).forward.sequences.seconds, 0);
  machine.flops_per_second = 1e8;
  EXPECT_EQ(CostOf(run, machine).forward.sequences.seconds, 0);
  // At last gradients go home, and nothing is computed meanwhile.
  const double home = ShiftSeconds(4.0 * 2 * 8 * 4 * 64, {4, 1, 4}, machine.network);
  EXPECT_DOUBLE_EQ(CostOf(run, machine).backward.sequences.seconds, home);
  // Where a hop of keys hides and one of both does not, a part is waited for.
  const double keys = ShiftSeconds(2.0 * 2 * 8 * 4 * 64, {4, 1, 4}, machine.network);
  const double attention = 8 * 16 * SquareModel({}).blocks[0].attention_flops_of_token() / 16;
  machine.flops_per_second = attention / keys;
  EXPECT_EQ(CostOf(run, machine).forward.sequences.seconds, 0);
  EXPECT_NEAR(CostOf(run, machine).backward.sequences.seconds, 3 * (home + keys - 2 * keys) + home,
              1e-12);
}

TEST(UnitCostTest, ComputingAndWhatIsKeptAreDivided) {
  const UnitCost one = CostOf(RunOf(TensorMode::k1d, 1));
  const BlockSizes block = SquareModel({}).blocks[0];
  const double flops = 8 * 16 * block.flops_of_token();
  EXPECT_NEAR(one.forward.computing_seconds, flops / 1e12, 1e-3 * flops / 1e12);
  EXPECT_DOUBLE_EQ(one.backward.computing_seconds, 2 * one.forward.computing_seconds);
  EXPECT_DOUBLE_EQ(one.kept_bytes, 8 * 16 * 32 * 64);
  EXPECT_DOUBLE_EQ(one.input_bytes, 8 * 16 * 2 * 64);
  EXPECT_DOUBLE_EQ(one.parameters, 12 * 64 * 64);
  struct Row {
    ParallelRun run;
    double parameters, kept, input, computing;  // Shares of one rank's.
  };
  ParallelRun megatron = RunOf(TensorMode::k1d, 4);
  megatron.divides_sequences = true;
  for (const Row& row : {Row{RunOf(TensorMode::k1d, 4), 0.25, (8 + 24 / 4.0) / 32, 1, 0.25},
                         Row{megatron, 0.25, 0.25, 0.25, 0.25},
                         Row{RunOf(TensorMode::k2d, 4), 0.25, 0.25, 0.25, 0.25},
                         Row{RunOf(TensorMode::k2Point5d, 8, 2), 0.25, 0.125, 0.125, 0.125},
                         Row{RunOf(TensorMode::k3d, 8), 0.125, 0.125, 0.125, 0.125},
                         Row{RunOf(TensorMode::k1d, 1, 1, 4), 1, 0.25, 0.25, 0.25}}) {
    const UnitCost cost = CostOf(row.run);
    EXPECT_DOUBLE_EQ(cost.parameters, row.parameters * one.parameters);
    EXPECT_DOUBLE_EQ(cost.kept_bytes, row.kept * one.kept_bytes);
    EXPECT_DOUBLE_EQ(cost.input_bytes, row.input * one.input_bytes);
    EXPECT_NEAR(cost.forward.computing_seconds, row.computing * one.forward.computing_seconds,
                2e-3 * one.forward.computing_seconds);
  }
}

TEST(UnitCostTest, WhatIsComputedAgainCountsInBackward) {
  ParallelRun run = RunOf(TensorMode::k1d, 4);
  const UnitCost once = CostOf(run);
  run.recompute = true;
  const UnitCost again = CostOf(run);
  EXPECT_DOUBLE_EQ(again.forward.seconds(), once.forward.seconds());
  EXPECT_DOUBLE_EQ(again.backward.seconds(), once.backward.seconds() + once.forward.seconds());
}

TEST(UnitCostTest, ASlowMemoryBoundsSmallProducts) {
  RankMachine machine = kMachine;
  machine.memory_bytes_per_second = 1e9;
  const ModelSizes model = SquareModel({});
  const BlockSizes& block = model.blocks[0];
  ParallelRun run = RunOf(TensorMode::k1d, 1);
  run.batch = 1;
  run.sequence = 1;
  // Each matrix is read for one token.
  EXPECT_GT(CostOf(run, machine).forward.computing_seconds, 2 * block.parameters() / 1e9);
  machine.kernel_seconds = 1;
  EXPECT_GT(CostOf(run, machine).forward.computing_seconds, 10);
}

TEST(UnitCostTest, TheHeadComputesAlsoWhereItsTableIsAnothers) {
  const ModelSizes model = SquareModel({.vocabulary = 1000});
  const ParallelRun run = RunOf(TensorMode::k1d, 4);
  const UnitCost shared = CostOfHead(model, /*has_table=*/false, run, kMachine);
  EXPECT_EQ(shared.parameters, 0);
  EXPECT_DOUBLE_EQ(shared.forward.computing_seconds, 2 * 1000 * 64 * 8 * 16 / 4 / 1e12);
  EXPECT_DOUBLE_EQ(CostOfHead(model, /*has_table=*/true, run, kMachine).parameters, 1000 * 64 / 4);
  const UnitCost embedding = CostOfEmbedding(model, run, kMachine);
  EXPECT_DOUBLE_EQ(embedding.parameters, 1000 * 64 / 4);
  EXPECT_EQ(embedding.forward.computing_seconds, 0);
  EXPECT_EQ(embedding.gathered_backward, 0);
  // It gathers the embedding's table again.
  EXPECT_DOUBLE_EQ(shared.gathered_forward, 1000 * 64 / 4);
  EXPECT_EQ(shared.gathered_backward, 0);
}

}  // namespace
}  // namespace gemini::policies
