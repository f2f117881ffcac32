// SPDX-License-Identifier: Apache-2.0
// How fast products are in a training step, which is slower than alone: a block of a transformer in
// plain Torch is timed, and what the formulas of policies/scaling/unit_cost.h count beside products
// is taken off.
// Thread: any; takes the threads that Torch has.
#pragma once
#include "trainer/forecast/named_trace.h"

namespace gemini::bench {

// Returns the mean time of forward and backward of a block of GPT's shape, of width 384 and two
// sequences of 256 tokens, in fp32 on the CPU. Blocks for a second and needs some 60 MiB.
double SecondsOfReferenceBlock();

// Returns the FLOP a second of products with which the formulas foretell that time of the block,
// beside the other rates. If these alone take longer, it is a thousand times what is measured.
double FlopsByReferenceBlock(double seconds, const trainer::ComputeRate& other);

}  // namespace gemini::bench
