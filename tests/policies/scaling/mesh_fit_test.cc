// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/mesh_fit.h"

#include <string>

#include "tests/policies/scaling/square_model.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

ParallelRun RunOf(int64_t ranks, const MeshSizes& sizes, TensorMode mode = TensorMode::k1d,
                  int64_t depth = 1) {
  ParallelRun run = {.mesh = *Mesh::Make(ranks, sizes),
                     .grid = *TensorGrid::Make(mode, sizes.tensor, depth)};
  run.sequence = 16;
  run.batch = 8;
  run.micro_batches = 4;
  return run;
}

void ExpectRefused(const ModelSizes& model, const ParallelRun& run, const std::string& why) {
  EXPECT_THAT(CheckMeshFits(model, run),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
}

TEST(MeshFitTest, WhatDividesFits) {
  const ModelSizes model = SquareModel({.blocks = 4, .width = 64, .heads = 4});
  for (ParallelRun run :
       {RunOf(4, {.tensor = 4}), RunOf(4, {.tensor = 4}, TensorMode::k2d),
        RunOf(8, {.tensor = 8}, TensorMode::k2Point5d, 2), RunOf(8, {.tensor = 8}, TensorMode::k3d),
        RunOf(8, {.sequence = 2, .tensor = 2}), RunOf(8, {.pipeline = 4, .tensor = 2})}) {
    EXPECT_OK(CheckMeshFits(model, run));
  }
  ParallelRun ring = RunOf(8, {.sequence = 8});
  ring.is_ring = true;
  EXPECT_OK(CheckMeshFits(model, ring));
}

TEST(MeshFitTest, WhatDoesNotIsNamed) {
  ModelSizes model = SquareModel({.blocks = 4, .width = 64, .heads = 4});
  ExpectRefused(model, RunOf(8, {.tensor = 8}), "attention heads, 4, do not divide by 8");
  ExpectRefused(model, RunOf(9, {.tensor = 9}, TensorMode::k2d), "8, do not divide by 3");
  ExpectRefused(model, RunOf(27, {.tensor = 27}, TensorMode::k3d), "8, do not divide by 9");
  ExpectRefused(model, RunOf(8, {.sequence = 8}), "attention heads of a rank, 4");
  ParallelRun ring = RunOf(16, {.sequence = 16});
  ring.is_ring = true;
  ExpectRefused(model, ring, "tokens of a sequence, 16, do not divide by 32");
  ParallelRun both = RunOf(4, {.sequence = 2, .tensor = 2});
  both.divides_sequences = true;
  ExpectRefused(model, both, "in one way at a time");
  ExpectRefused(model, RunOf(8, {.sequence = 2, .tensor = 4}, TensorMode::k2d), "go with 1d");
  ExpectRefused(model, RunOf(8, {.pipeline = 8}),
                "8 stages of a pipeline need as many blocks, the model has 4");
  ParallelRun interleaved = RunOf(2, {.pipeline = 2});
  interleaved.schedule = PipelineSchedule::kInterleaved;
  interleaved.chunks = 2;
  interleaved.micro_batches = 3;
  ExpectRefused(model, interleaved, "3");
  interleaved = RunOf(2, {});
  interleaved.schedule = PipelineSchedule::kInterleaved;
  interleaved.chunks = 2;
  ExpectRefused(model, interleaved, "2 chunks of a rank");
  ModelSizes odd_heads = model;
  odd_heads.blocks.front().query_width += 1;
  ExpectRefused(odd_heads, RunOf(4, {.tensor = 4}, TensorMode::k2d), "elements of attention heads");
  model.has_experts = true;
  ExpectRefused(model, RunOf(4, {.tensor = 4}, TensorMode::k2d), "experts go with 1d");
  model.has_experts = false;
  model.projection_parameters = 1;
  ExpectRefused(model, RunOf(4, {.tensor = 4}, TensorMode::k2d), "another width than the blocks");
  EXPECT_OK(CheckMeshFits(model, RunOf(4, {.tensor = 4})));
}

TEST(MeshFitTest, WaysThatAModelIsNotSharedInAreRefusedByName) {
  ModelSizes model = SquareModel({.blocks = 4, .width = 64, .heads = 4});
  const auto refused = [&](const ParallelRun& run, const std::string& why) {
    EXPECT_THAT(CheckMeshFits(model, run),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(why)));
  };
  ParallelRun parts = RunOf(4, {.tensor = 4}), ring = RunOf(2, {.sequence = 2});
  parts.divides_sequences = true;
  ring.is_ring = true;
  model.sharing = {.in_grids = false, .on_sequence_axis = false};
  refused(RunOf(4, {.tensor = 4}, TensorMode::k2d), "by 2d: use 1d, ZeRO or a pipeline");
  refused(RunOf(8, {.tensor = 8}, TensorMode::k2Point5d, 2), "by 2.5d");
  refused(RunOf(8, {.tensor = 8}, TensorMode::k3d), "by 3d");
  refused(RunOf(4, {.sequence = 2, .tensor = 2}), "by ulysses");
  refused(ring, "by a ring");
  EXPECT_OK(CheckMeshFits(model, parts));
  model.sharing.between_layers = false;
  refused(parts, "by parts of sequences between layers");
  EXPECT_OK(CheckMeshFits(model, RunOf(4, {.tensor = 4})));
  model.sharing.in_lines = false;
  refused(RunOf(4, {.tensor = 4}), "by 1d: use ZeRO or a pipeline");
  EXPECT_OK(CheckMeshFits(model, RunOf(8, {.pipeline = 4})));
}

TEST(MeshFitTest, FewKeyHeadsAreCopiedInALine) {
  ModelSizes model = SquareModel({.heads = 8});
  model.num_key_heads = 2;
  EXPECT_OK(CheckMeshFits(model, RunOf(8, {.tensor = 8})));
  EXPECT_OK(CheckMeshFits(model, RunOf(2, {.tensor = 2})));
  model.copies_key_heads = false;
  ExpectRefused(model, RunOf(8, {.tensor = 8}), "key and value heads, 2, do not divide by 8");
  EXPECT_OK(CheckMeshFits(model, RunOf(2, {.tensor = 2})));
  model.copies_key_heads = true;
  model.num_heads = 12;
  model.num_key_heads = 4;
  model.feed_width = 240;
  ExpectRefused(model, RunOf(6, {.tensor = 6}), "key and value heads, 4, do not divide by 6");
  ParallelRun ulysses = RunOf(6, {.sequence = 6});
  ulysses.sequence = 24;
  ExpectRefused(model, ulysses, "key and value heads of a rank, 4, do not divide by 6");
}

}  // namespace
}  // namespace gemini::policies
