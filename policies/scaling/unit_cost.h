// SPDX-License-Identifier: Apache-2.0
// Computes what one rank computes, sends and keeps for one unit and one micro-batch. A unit is a
// block, the embedding, or the head with the loss. Units are what ZeRO gathers at a time.
// Model:  a product takes the larger of its arithmetic and its bytes; activations, norms and sums
//         of residuals take their bytes. Backward takes twice the forward pass, and once more what
//         is computed again. Ranks wait for the collectives of a layer. A ring's hops hide under
//         the attention of the hop before.
// Counts: the exchanges of tensor_costs.h. Those of embeddings, of the head and of vectors are left
//         out, and so are logits, of which the head makes some at a time.
// Pure.
#pragma once
#include "policies/scaling/exchange_cost.h"
#include "policies/scaling/model_sizes.h"
#include "policies/scaling/parallel_run.h"
#include "policies/scaling/rank_groups.h"

namespace gemini::policies {

struct PassCost {
  double computing_seconds = 0;
  ExchangeCost layers;     // Of ranks that share them.
  ExchangeCost sequences;  // Of ranks that share these. Its seconds are what nothing hides.
  double seconds() const { return computing_seconds + layers.seconds + sequences.seconds; }
  PassCost& operator+=(const PassCost& other);
};

struct UnitCost {
  double parameters = 0;  // Of the rank's parts of matrices, before ZeRO divides them.
  // What of them stage 3 gathers for a pass. An embedding is not gathered for backward, a head
  // stays until then, and one whose table is the embedding's gathers that again.
  double gathered_forward = 0;
  double gathered_backward = 0;
  PassCost forward;
  PassCost backward;      // With what is computed again.
  double kept_bytes = 0;  // From forward to backward, where it is not computed again.
  double input_bytes = 0;
};

UnitCost CostOfBlock(const BlockSizes& block, double width, const ParallelRun& run,
                     const RankMachine& machine, const RankGroups& groups);
UnitCost CostOfEmbedding(const ModelSizes& model, const ParallelRun& run,
                         const RankMachine& machine);
// `has_table`: the rank holds the head's matrix for itself, and not as the embedding's table.
UnitCost CostOfHead(const ModelSizes& model, bool has_table, const ParallelRun& run,
                    const RankMachine& machine);

// Returns into how many parts hidden states are divided between layers.
double HiddenParts(const ParallelRun& run);

}  // namespace gemini::policies
