// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/parallel_step.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "policies/pipeline/pipeline_playback.h"
#include "policies/scaling/rank_groups.h"
#include "policies/scaling/unit_cost.h"
#include "tests/policies/scaling/square_model.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

// Links without latency, and fast ones, so that what is looked at is larger than rounding to
// nanoseconds.
constexpr RankMachine kMachine = {
    .flops_per_second = 1e9,
    .memory_bytes_per_second = 1e12,
    .network = {.ranks_per_node = 4, .within = {0, 1e10}, .between = {0, 1e9}}};

const ModelSizes& Model() {
  static const ModelSizes model = SquareModel({.blocks = 16});
  return model;
}

ParallelRun RunOf(int64_t ranks, const MeshSizes& sizes, int64_t micro_batches = 8) {
  ParallelRun run = {.mesh = *Mesh::Make(ranks, sizes)};
  run.zero_stage = 1;
  run.sequence = 16;
  run.micro_batches = micro_batches;
  return run;
}

RankGroups GroupsFor(const ParallelRun& run) { return GroupsOf(run.mesh, run.grid, 4); }

UnitCost BlockOf(const ParallelRun& run, const RankMachine& machine = kMachine) {
  return CostOfBlock(Model().blocks[0], Model().width, run, machine,
                     GroupsOf(run.mesh, run.grid, machine.network.ranks_per_node));
}

TEST(ParallelStepTest, OneRankComputesAndUpdates) {
  const ParallelRun run = RunOf(1, {});
  ASSERT_OK_AND_ASSIGN(const StepForecast step, ForetellStep(Model(), run, kMachine));
  const UnitCost block = BlockOf(run);
  EXPECT_DOUBLE_EQ(step.seconds.computing,
                   8 * 16 * (block.forward.seconds() + block.backward.seconds()));
  const double parameters = Model().parameters();
  EXPECT_DOUBLE_EQ(step.seconds.update, parameters * (2 * 12 + 2) / 1e12);
  EXPECT_DOUBLE_EQ(step.seconds.total(), step.seconds.computing + step.seconds.update);
  EXPECT_DOUBLE_EQ(step.tokens_per_second, 8 * 16 / step.seconds.total());
  EXPECT_NEAR(step.efficiency, 1, 0.01);
  EXPECT_EQ(step.sent.bytes, 0);
  EXPECT_DOUBLE_EQ(step.memory.total(), parameters * 14 + 16 * block.kept_bytes);
}

TEST(ParallelStepTest, MemoryFollowsTheStageOfZero) {
  const double parameters = Model().parameters();
  const double block = Model().blocks[0].parameters();
  struct Row {
    int stage;
    bool ahead;
    double held, gathered;
  };
  for (const Row& row :
       {Row{0, false, 14, 0}, Row{1, false, 4 + 14 / 4.0, 0}, Row{2, false, 2 + 14 / 4.0, 2},
        Row{3, false, 14 / 4.0, 4}, Row{3, true, 14 / 4.0, 6}}) {
    ParallelRun run = RunOf(4, {});
    run.zero_stage = row.stage;
    run.gathers_ahead = row.ahead;
    ASSERT_OK_AND_ASSIGN(const StepForecast step, ForetellStep(Model(), run, kMachine));
    const RankMemory& memory = step.memory;
    EXPECT_NEAR(memory.parameters + memory.gradients + memory.states, parameters * row.held, 1)
        << row.stage;
    EXPECT_NEAR(memory.gathered, block * row.gathered, 1) << row.stage;
  }
}

TEST(ParallelStepTest, HigherStagesSendAsOftenAsThereAreMicroBatches) {
  const double parameters = Model().parameters();
  for (const int stage : {0, 1, 2, 3}) {
    ParallelRun run = RunOf(4, {}, /*micro_batches=*/3);
    run.zero_stage = stage;
    ASSERT_OK_AND_ASSIGN(const StepForecast step, ForetellStep(Model(), run, kMachine));
    EXPECT_NEAR(step.sent.bytes, 2 * parameters * ZeroElementsSent(stage, 4, {.micro_batches = 3}),
                1)
        << stage;
    EXPECT_EQ(step.sent.bytes_between_nodes, 0);
  }
}

TEST(ParallelStepTest, WhatIsGatheredAheadHidesUnderComputing) {
  ParallelRun run = RunOf(4, {});
  run.zero_stage = 3;
  ASSERT_OK_AND_ASSIGN(const StepForecast waits, ForetellStep(Model(), run, kMachine));
  run.gathers_ahead = true;
  ASSERT_OK_AND_ASSIGN(const StepForecast hides, ForetellStep(Model(), run, kMachine));
  // The first unit of each pass is waited for.
  EXPECT_NEAR(hides.seconds.gathers, waits.seconds.gathers / 16, 1e-6 * waits.seconds.gathers);
  EXPECT_DOUBLE_EQ(hides.seconds.sums, waits.seconds.sums);
  run.hides_sums = true;
  ASSERT_OK_AND_ASSIGN(const StepForecast all, ForetellStep(Model(), run, kMachine));
  EXPECT_NEAR(all.seconds.sums, waits.seconds.sums / 16, 1e-6 * waits.seconds.sums);
  EXPECT_DOUBLE_EQ(all.sent.bytes, waits.sent.bytes);
}

// By the formulas of pipeline_schedule.h's sources, as PipelinePlaybackTest checks them.
TEST(ParallelStepTest, APipelineIsIdleAsItsScheduleSays) {
  RankMachine machine = kMachine;
  machine.network.within.bytes_per_second = 1e18;
  for (const int64_t chunks : {1, 2, 4}) {
    // Many more than are played.
    for (const int64_t micro_batches : {4, 8, 100, 1024}) {
      ParallelRun run = RunOf(4, {.pipeline = 4}, micro_batches);
      run.chunks = chunks;
      run.schedule = chunks > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1f1b;
      ASSERT_OK_AND_ASSIGN(const StepForecast step, ForetellStep(Model(), run, machine));
      const UnitCost block = BlockOf(run, machine);
      const double rank = 4 * (block.forward.seconds() + block.backward.seconds());
      const double rounding = 1e-9 * static_cast<double>(3 * micro_batches * chunks);
      EXPECT_NEAR(step.seconds.idle, 3 * rank / static_cast<double>(chunks), rounding);
      EXPECT_NEAR(step.seconds.computing, static_cast<double>(micro_batches) * rank, rounding);
      EXPECT_NEAR(step.seconds.transfers, 0, rounding);
      ASSERT_OK_AND_ASSIGN(const StepForecast bound,
                           BoundStep(Model(), run, machine, GroupsFor(run)));
      EXPECT_NEAR(bound.seconds.total(), step.seconds.total(), 2 * rounding);
      EXPECT_DOUBLE_EQ(bound.memory.total(), step.memory.total());
      // The first rank keeps the most: of 1f1b as many micro-batches as there are ranks.
      const double live = chunks == 1 ? 4
                                      : std::min(2.0 * 3 + static_cast<double>(chunks - 1) * 4 + 1,
                                                 static_cast<double>(micro_batches * chunks)) /
                                            static_cast<double>(chunks);
      EXPECT_DOUBLE_EQ(step.memory.activations, 4 * block.kept_bytes * live);
    }
  }
}

TEST(ParallelStepTest, TransfersAreWaitedForAndABoundLeavesThemOut) {
  RankMachine machine = kMachine;
  machine.network.within = {1e-3, 1e7};
  ParallelRun run = RunOf(4, {.pipeline = 4}, 64);
  ASSERT_OK_AND_ASSIGN(const StepForecast step, ForetellStep(Model(), run, machine));
  const double transfer = 1e-3 + 16 * 64 * 2 / 1e7;
  // To the last rank and back at least.
  EXPECT_GE(step.seconds.transfers, 6 * transfer * 0.999);
  EXPECT_DOUBLE_EQ(step.sent.bytes, 64 * 2 * 16 * 64 * 2);
  ASSERT_OK_AND_ASSIGN(const StepForecast bound, BoundStep(Model(), run, machine, GroupsFor(run)));
  EXPECT_EQ(bound.seconds.transfers, 0);
  EXPECT_LT(bound.seconds.total(), step.seconds.total());
}

// A pipeline that is full repeats what it does, so few micro-batches are played of many.
TEST(ParallelStepTest, ManyMicroBatchesTakeWhatAPlaybackOfAllTakes) {
  RankMachine machine = kMachine;
  const auto ns = [](double seconds) { return std::llround(1e9 * seconds); };
  // The second link is slower than a chunk.
  for (const double transfer : {1e-3, 2e-2}) {
    machine.network.within = {transfer, 1e18};
    for (const auto& [chunks, micro_batches] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 24}, {1, 61}, {1, 64}, {2, 24}, {2, 64}}) {
      ParallelRun run = RunOf(4, {.pipeline = 4}, micro_batches);
      run.chunks = chunks;
      run.schedule = chunks > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1f1b;
      const PipelineShape shape = {4, chunks, micro_batches};
      ASSERT_OK_AND_ASSIGN(const StepForecast step, ForetellStep(Model(), run, machine));
      const UnitCost block = BlockOf(run, machine);
      const double blocks = 4 / static_cast<double>(chunks);
      ASSERT_OK_AND_ASSIGN(const PipelineTaskLists lists, PipelineLists(run.schedule, shape));
      ASSERT_OK_AND_ASSIGN(const std::vector<RankPlayback> ranks,
                           PlayPipeline(run.schedule, shape, lists,
                                        {.forward_ns = ns(blocks * block.forward.seconds()),
                                         .backward_ns = ns(blocks * block.backward.seconds() / 2),
                                         .weights_ns = ns(blocks * block.backward.seconds() / 2),
                                         .transfer_ns = ns(transfer)}));
      int64_t end_ns = 0;
      for (const RankPlayback& rank : ranks) end_ns = std::max(end_ns, rank.end_ns);
      EXPECT_NEAR(step.seconds.total() - step.seconds.update, static_cast<double>(end_ns) / 1e9,
                  1e-6)
          << transfer << " " << chunks << " " << micro_batches;
    }
  }
}

TEST(ParallelStepTest, ATableThatIsTiedIsInBothEndsOfAPipeline) {
  const ModelSizes model = SquareModel({.blocks = 4, .vocabulary = 10000});
  const double block = model.blocks[0].parameters();
  ParallelRun run = RunOf(2, {.pipeline = 2});
  const auto held = [&] {
    const absl::StatusOr<StepForecast> step = ForetellStep(model, run, kMachine);
    EXPECT_OK(step);
    return step->memory.parameters + step->memory.gradients + step->memory.states;
  };
  // Such a head takes as long as thirteen blocks, so the last stage has one.
  EXPECT_DOUBLE_EQ(held(), 14 * (10000 * 64 + 3 * block));
  run.split = {1, 3};
  EXPECT_DOUBLE_EQ(held(), 14 * (10000 * 64 + 3 * block));
}

TEST(ParallelStepTest, RecomputationKeepsInputsAndOneBlock) {
  ParallelRun run = RunOf(1, {});
  run.recompute = true;
  ASSERT_OK_AND_ASSIGN(const StepForecast step, ForetellStep(Model(), run, kMachine));
  const UnitCost block = BlockOf(run);
  EXPECT_DOUBLE_EQ(step.memory.activations, 16 * block.input_bytes + block.kept_bytes);
  EXPECT_NEAR(step.efficiency, 0.75, 0.01);
}

TEST(ParallelStepTest, WhatDeviceLacksLiesInHost) {
  const ParallelRun run = RunOf(1, {});
  RankMachine machine = kMachine;
  machine.memory_bytes = 1e12;
  ASSERT_OK_AND_ASSIGN(const StepForecast all, ForetellStep(Model(), run, machine));
  EXPECT_EQ(all.memory.lacking, 0);
  const double parameters = Model().parameters();
  // Half of the states have no room.
  machine.memory_bytes = all.memory.total() - 5 * parameters;
  ASSERT_OK_AND_ASSIGN(const StepForecast lacks, ForetellStep(Model(), run, machine));
  EXPECT_NEAR(lacks.memory.lacking, 5 * parameters, 1);
  EXPECT_EQ(lacks.memory.host, 0);
  machine.host_bytes = 1e12;
  machine.host_bytes_per_second = 1e12;
  machine.host_updates_per_second = parameters;  // Of half of them in half a second.
  ASSERT_OK_AND_ASSIGN(StepForecast step, ForetellStep(Model(), run, machine));
  EXPECT_EQ(step.memory.lacking, 0);
  EXPECT_NEAR(step.memory.host, 5 * parameters, 1);
  EXPECT_DOUBLE_EQ(step.seconds.update, all.seconds.update / 2);
  EXPECT_NEAR(step.seconds.total(), std::max(0.5, step.seconds.computing), 1e-3);
  // A link so slow that new parameters take 100 s.
  machine.host_bytes_per_second = parameters / 100;
  ASSERT_OK_AND_ASSIGN(step, ForetellStep(Model(), run, machine));
  EXPECT_NEAR(step.seconds.total(), 100, 1e-6);
  // All states and three quarters of parameters and gradients, which come in each micro-batch:
  // those that are used take some of the room of the others.
  const double block = Model().blocks[0].parameters();
  machine.memory_bytes = all.memory.total() - 13 * parameters + 6 * block;
  ASSERT_OK_AND_ASSIGN(step, ForetellStep(Model(), run, machine));
  EXPECT_NEAR(step.memory.host, 13 * parameters, 1);
  EXPECT_NEAR(step.seconds.total(),
              (2 * parameters + 8 * 0.75 * (2 * 2 + 2) * parameters) / (parameters / 100), 1e-3);
  // And what HOST lacks is told.
  machine.host_bytes = 12 * parameters;
  ASSERT_OK_AND_ASSIGN(step, ForetellStep(Model(), run, machine));
  EXPECT_NEAR(step.memory.lacking, parameters, 1);
}

TEST(ParallelStepTest, WhatIsNoPipelineIsRefused) {
  EXPECT_THAT(ForetellStep(Model(), RunOf(32, {.pipeline = 32}), kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32 stages")));
  ParallelRun run = RunOf(4, {.pipeline = 4}, 6);
  run.chunks = 2;
  run.schedule = PipelineSchedule::kInterleaved;
  EXPECT_THAT(ForetellStep(Model(), run, kMachine), StatusIs(absl::StatusCode::kInvalidArgument));
  run.chunks = 1;
  run.schedule = PipelineSchedule::kZbH1;
  EXPECT_OK(ForetellStep(Model(), run, kMachine));
  EXPECT_THAT(BoundStep(Model(), run, kMachine, GroupsFor(run)),
              StatusIs(absl::StatusCode::kUnimplemented));
}

// Qi et al., ICLR 2024: where all three passes take equally long, weights' gradients leave a third
// of what 1F1B is idle for.
TEST(ParallelStepTest, ASplitBackwardFillsIdleTime) {
  ParallelRun run = RunOf(4, {.pipeline = 4}, 64);
  RankMachine machine = kMachine;
  machine.network.within.bytes_per_second = 1e18;
  ASSERT_OK_AND_ASSIGN(const StepForecast whole, ForetellStep(Model(), run, machine));
  run.schedule = PipelineSchedule::kZbH1;
  ASSERT_OK_AND_ASSIGN(const StepForecast split, ForetellStep(Model(), run, machine));
  EXPECT_NEAR(split.seconds.idle / whole.seconds.idle, 1.0 / 3, 0.01);
}

}  // namespace
}  // namespace gemini::policies
