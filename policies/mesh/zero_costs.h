// SPDX-License-Identifier: Apache-2.0
// Computes how many bytes a rank holds, and how many elements it sends, for each parameter that is
// trained with ZeRO. At stage 0 each rank holds everything. At stage 1 it keeps the optimizer's
// states of one part only, at stage 2 the gradients of that part only, too, and at stage 3 its
// parameters.
// Counts: units are padded to equal parts of whole blocks (trainer/parallel/shard_cut.h); the
//         padding is left out. Elements are counted as rings send them
//         (policies/mesh/tensor_costs.h).
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
//         Models", arXiv:1910.02054.
// Pure.
#pragma once
#include <cstdint>

namespace gemini::policies {

// Bytes of one parameter, its gradient, and what the optimizer keeps of it. In bf16 ours are 2, 2
// and 10: the bits of the master that the parameter lacks, and two moments.
struct ParameterBytes {
  double parameter = 4;
  double gradient = 4;
  double states = 8;
  double all() const { return parameter + gradient + states; }
};

// What of a step decides how often a unit is sent.
struct ZeroStep {
  int64_t micro_batches = 1;
  bool adds_each = false;    // Stages 0 and 1 add gradients up in each micro-batch, not once.
  bool is_vertical = false;  // A unit of stage 3 is gathered once a pass for all of them.
};

// Returns the bytes that a rank holds for each parameter of the model. `stage`: 0 to 3.
// As the paper counts: a rank's part of parameters or gradients lies within the whole, if it holds
// that.
double ZeroBytesOfPaper(int stage, int64_t num_ranks, const ParameterBytes& bytes);
// As this trainer holds them: a rank's part is a managed parameter of its own, beside the whole.
// Gradients that are added up in each micro-batch are whole for a unit at a time, which is left out
// here.
double ZeroBytes(int stage, int64_t num_ranks, const ParameterBytes& bytes,
                 const ZeroStep& step = {});

// Returns how many parameters or gradients one rank sends in a step, for each parameter of the
// model.
double ZeroElementsSent(int stage, int64_t num_ranks, const ZeroStep& step);

}  // namespace gemini::policies
