// SPDX-License-Identifier: Apache-2.0
// Computes causal attention among tokens of which each rank of a line has a part: queries stay, and
// keys and values go round the ranks, while each computes with those that it has.
// Sends:  in forward keys and values, in each hop but the last; in backward keys and values
//         likewise, and with them their gradients, which are fp32, or fp64 of such, and go one hop
//         further, home. With as many heads of keys as of queries that is 6 T h (P - 1) / P + 2 T h
//         / P elements for T tokens of width h on P ranks.
// Memory: scores of a piece alone. Each hop's are added to sums of exponentials and of values.
// Bits:   an order of adding for each rank, the same each time.
// Errors: as tensor_exchange.h. A second derivative is refused.
// Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers", arXiv:2310.01889;
//         sums by the largest score are those of Milakov and Gimelshein, arXiv:1805.02867.
#pragma once
#include <cstdint>
#include <vector>

#include "torch/types.h"
#include "trainer/layer_set.h"
#include "trainer/models/attention_pieces.h"
#include "trainer/models/row_attention.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {

// Returns the tokens of a sequence that a part has (HiddenPart): one slice, or two in a zigzag.
std::vector<TokenSlice> SlicesOfPart(const EqualPart& part, bool zigzag, int64_t sequence);

// Returns the attention of this rank's query [batch, heads, tokens, head size] to the keys of all
// ranks, of which it has key and value [batch, KV heads, tokens, head size], as RowAttention does.
torch::Tensor RingAttention(const torch::Tensor& query, const torch::Tensor& key,
                            const torch::Tensor& value, const RowAttentionOptions& options,
                            const RankLine& line, bool zigzag);

}  // namespace gemini::trainer
