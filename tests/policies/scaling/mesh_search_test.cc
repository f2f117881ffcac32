// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/mesh_search.h"

#include <algorithm>
#include <set>

#include "policies/scaling/mesh_fit.h"
#include "tests/policies/scaling/square_model.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

RankMachine MachineOf(double memory_bytes) {
  return {.flops_per_second = 1e12,
          .memory_bytes_per_second = 1e12,
          .memory_bytes = memory_bytes,
          .network = {.ranks_per_node = 4, .within = {3e-6, 1e10}, .between = {1e-5, 1e9}}};
}

ParallelRun Like() {
  ParallelRun run = {.mesh = *Mesh::Make(1, {})};
  run.sequence = 64;
  run.gathers_ahead = true;
  return run;
}

const ModelSizes& Model() {
  static const ModelSizes model =
      SquareModel({.blocks = 8, .width = 256, .vocabulary = 4096, .sequence = 64, .heads = 8});
  return model;
}

// The fastest of all meshes, micro-batches, schedules, stages and ways, each foretold whole.
double FastestOfAll(const RankMachine& machine, int64_t num_ranks, int64_t step_sequences) {
  double fastest = 0;
  for (int64_t pipeline = 1; pipeline <= num_ranks; ++pipeline) {
    for (int64_t tensor = 1; tensor <= num_ranks; ++tensor) {
      for (int64_t sequence = 1; sequence <= num_ranks; ++sequence) {
        const auto mesh =
            Mesh::Make(num_ranks, {.pipeline = pipeline, .sequence = sequence, .tensor = tensor});
        if (!mesh.ok()) continue;
        for (const TensorMode mode :
             {TensorMode::k1d, TensorMode::k2d, TensorMode::k2Point5d, TensorMode::k3d}) {
          for (int64_t depth = 1; depth < std::max<int64_t>(tensor, 2); ++depth) {
            const auto grid = TensorGrid::Make(mode, tensor, depth);
            if (!grid.ok()) continue;
            for (int bits = 0; bits < 1 << 3; ++bits) {
              for (int64_t batch = 1; batch <= step_sequences; ++batch) {
                for (int64_t chunks = 1; chunks <= kMostChunks; ++chunks) {
                  for (int stage = 0; stage <= 3; ++stage) {
                    ParallelRun run = Like();
                    run.mesh = *mesh;
                    run.grid = *grid;
                    run.is_ring = (bits & 1) != 0;
                    run.divides_sequences = (bits & 2) != 0;
                    run.recompute = (bits & 4) != 0;
                    run.batch = batch;
                    const int64_t rows = batch * run.size(MeshAxis::kData);
                    if (step_sequences % rows != 0) continue;
                    run.micro_batches = step_sequences / rows;
                    run.chunks = chunks;
                    if (chunks > 1) run.schedule = PipelineSchedule::kInterleaved;
                    if (chunks > 1 && pipeline == 1) continue;
                    run.zero_stage = stage;
                    if (!CheckMeshFits(Model(), run).ok()) continue;
                    const auto step = ForetellStep(Model(), run, machine);
                    if (!step.ok() || step->memory.lacking > 0) continue;
                    fastest = std::max(fastest, step->tokens_per_second);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  return fastest;
}

TEST(MeshSearchTest, FindsTheFastestOfAll) {
  for (const double memory : {1e9, 6e7, 2.2e7}) {
    const RankMachine machine = MachineOf(memory);
    ASSERT_OK_AND_ASSIGN(const MeshSearch search, SearchMeshes(Model(), machine, Like(), 8, 16, 3));
    ASSERT_THAT(search.best, SizeIs(3)) << memory;
    EXPECT_DOUBLE_EQ(search.best[0].forecast.tokens_per_second, FastestOfAll(machine, 8, 16))
        << memory;
    std::set<std::string> meshes;
    for (const FoundMesh& found : search.best) {
      EXPECT_EQ(found.forecast.memory.lacking, 0);
      EXPECT_LE(found.forecast.tokens_per_second, search.best[0].forecast.tokens_per_second);
      EXPECT_TRUE(meshes.insert(DescribeMesh(found.run)).second);
    }
    // The fastest is also the best of its way.
    EXPECT_EQ(DescribeMesh(search.kinds.front().found.run), DescribeMesh(search.best[0].run));
    EXPECT_THAT(search.nearest, IsEmpty());
  }
}

TEST(MeshSearchTest, RanksMayHaveWhatTheyLackInHost) {
  RankMachine machine = MachineOf(4e6);
  ASSERT_OK_AND_ASSIGN(MeshSearch search, SearchMeshes(Model(), machine, Like(), 8, 16, 3));
  EXPECT_THAT(search.best, IsEmpty());
  machine.host_bytes = 1e8;
  machine.host_bytes_per_second = 1e9;
  machine.host_updates_per_second = 1e8;
  ASSERT_OK_AND_ASSIGN(search, SearchMeshes(Model(), machine, Like(), 8, 16, 3));
  ASSERT_THAT(search.best, SizeIs(3));
  EXPECT_GT(search.best[0].forecast.memory.host, 0);
  EXPECT_DOUBLE_EQ(search.best[0].forecast.tokens_per_second, FastestOfAll(machine, 8, 16));
}

TEST(MeshSearchTest, WhereNoneFitsTheNearestIsTold) {
  ASSERT_OK_AND_ASSIGN(const MeshSearch search,
                       SearchMeshes(Model(), MachineOf(1e6), Like(), 8, 16, 3));
  EXPECT_THAT(search.best, IsEmpty());
  EXPECT_THAT(search.kinds, IsEmpty());
  ASSERT_THAT(search.nearest, SizeIs(1));
  EXPECT_GT(search.nearest[0].forecast.memory.lacking, 0);
  EXPECT_EQ(search.num_too_large, search.num_divide);
}

TEST(MeshSearchTest, WhatDividesInNoWayIsNotFound) {
  // Three sequences for five ranks, which divide neither heads nor blocks.
  ASSERT_OK_AND_ASSIGN(const MeshSearch search,
                       SearchMeshes(SquareModel({.blocks = 1}), MachineOf(1e9), Like(), 5, 3, 3));
  EXPECT_EQ(search.num_divide, 0);
  EXPECT_THAT(search.best, IsEmpty());
  EXPECT_THAT(search.nearest, IsEmpty());
  EXPECT_THAT(SearchMeshes(Model(), MachineOf(1e9), Like(), 0, 16, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 ranks")));
}

TEST(MeshSearchTest, AMeshIsDescribedByWhatItShares) {
  ParallelRun run = Like();
  run.mesh = *Mesh::Make(16, {.pipeline = 2, .tensor = 4});
  run.grid = *TensorGrid::Make(TensorMode::k1d, 4);
  run.divides_sequences = true;
  run.chunks = 2;
  run.recompute = true;
  EXPECT_EQ(DescribeMesh(run),
            "pp 2 x dp 2 x sp 1 x tp 4, pipeline and 1d with parts of sequences, ZeRO 3, 1 x 1 "
            "sequences, 2 chunks, recomputed, --gather-ahead 1");
  EXPECT_THAT(DescribeMesh(Like()), HasSubstr("data alone"));
  // Stage 1 gathers nothing while it computes.
  run.zero_stage = 1;
  EXPECT_THAT(DescribeMesh(run), EndsWith(", recomputed"));
  run.zero_stage = 3;
  run.gathers_ahead = false;
  EXPECT_THAT(DescribeMesh(run), EndsWith(", recomputed"));
}

}  // namespace
}  // namespace gemini::policies
