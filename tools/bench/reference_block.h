// SPDX-License-Identifier: Apache-2.0
// Measures how fast products of matrices are in a training step, where they are slower than alone:
// a block of a transformer in plain Torch is timed, and what a dry run of it
// (trainer/forecast/traced_step.h) counts beside products is taken off.
// Thread: any; takes the threads that Torch has.
#pragma once
#include "trainer/forecast/named_trace.h"

namespace gemini::bench {

// Returns the mean time of forward and backward of a block of GPT's shape, of width 384 and two
// sequences of 256 tokens, in fp32 on the CPU. Blocks for a second and needs some 60 MiB.
double SecondsOfReferenceBlock();

// Returns the FLOP a second of products with which a dry run foretells that time of the block,
// beside the other rates. If these alone take longer, it is a thousand times what its matrices do
// in that time.
double FlopsByReferenceBlock(double seconds, const trainer::ComputeRate& other);

}  // namespace gemini::bench
