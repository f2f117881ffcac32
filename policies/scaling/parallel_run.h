// SPDX-License-Identifier: Apache-2.0
// Describes the run that a forecast is asked about: how many ranks train a model together, and what
// machine each of them has.
// Units:  bytes and seconds, as doubles; sequences and tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "policies/mesh/collective_cost.h"
#include "policies/mesh/mesh.h"
#include "policies/mesh/tensor_grid.h"
#include "policies/mesh/zero_costs.h"
#include "policies/pipeline/pipeline_schedule.h"

namespace gemini::policies {

struct ParallelRun {
  Mesh mesh;
  TensorGrid grid = {};            // Of the mesh's tensor axis.
  bool divides_sequences = false;  // Between the layers of a 1d line, as Megatron does.
  bool is_ring = false;            // Along the mesh's sequence axis; else Ulysses.
  int zero_stage = 3;              // 0 to 3.
  bool gathers_ahead = false;      // Stage 3 gathers a unit while the one before computes.
  bool adds_each = false;          // Stages 0 and 1 add gradients in each micro-batch, not once.
  bool hides_sums = false;         // Gradients are added up while backward goes on.
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t chunks = 1;               // Of each rank of a pipeline.
  std::vector<int64_t> split = {};  // Blocks of each of its stages; empty: they are dealt.
  int64_t sequence = 1024;          // Tokens.
  int64_t batch = 1;                // Sequences of a micro-batch.
  int64_t micro_batches = 1;        // Of each pipeline in a step.
  bool recompute = false;
  ParameterBytes bytes = {2, 2, 10};
  double activation_bytes = 2;  // Of an element.

  int64_t size(MeshAxis axis) const { return mesh.size(axis); }
  int64_t num_stages() const { return size(MeshAxis::kPipeline) * chunks; }
  // Returns how many tokens a micro-batch has, over all ranks that share it.
  double micro_batch_tokens() const { return static_cast<double>(batch * sequence); }
  double step_tokens() const {
    return micro_batch_tokens() * static_cast<double>(micro_batches * size(MeshAxis::kData));
  }
};

// What one rank has, as it is achieved, not as data sheets say.
struct RankMachine {
  double flops_per_second = 1e14;  // Of products.
  double memory_bytes_per_second = 1e12;
  double kernel_seconds = 0;  // Of one kernel, beside its work.
  double memory_bytes = 0;    // Of DEVICE, without what its context takes.
  // Its part of the HOST of its node, each direction of its link to that, and its part of what the
  // node's processors update. 0 bytes: nothing leaves DEVICE.
  double host_bytes = 0;
  double host_bytes_per_second = 0;
  double host_updates_per_second = 0;  // Parameters.
  RankNetwork network;
};

}  // namespace gemini::policies
