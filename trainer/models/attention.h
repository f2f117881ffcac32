// SPDX-License-Identifier: Apache-2.0
// Computes self-attention within documents, causal or to all of a document's tokens: by Torch's
// scaled_dot_product_attention, or by RowAttention where scores are capped, a window is shorter
// than the sequence, or weights are dropped on a CPU or in rows of several documents. The former
// stores no scores, except on a GPU in fp32 where heads are shared: no fused kernel there takes
// that. To drop weights, it seeds Torch's generator of that GPU with the mask's key: its mask
// follows from the key, too, but is another one than RowAttention's.
// Thread: any; of those on one GPU one at a time, for the generator's sake.
#pragma once
#include <cstdint>

#include "torch/types.h"
#include "trainer/models/batch_context.h"
#include "trainer/models/row_attention.h"

namespace gemini::trainer {

// Returns x [batch, heads, sequence, head size] rotated by the angles, or x itself if there are
// none. Elements of a head for which there are no angles stay as they are.
torch::Tensor RotateHeads(const torch::Tensor& x, const HeadAngles& angles);

// Returns the attention of query [batch, sequence, heads, head size] and key and value [batch,
// sequence, KV heads, head size], all of one floating dtype, as a contiguous tensor [batch,
// sequence, heads * head size] of it. Query and key are rotated by `angles`. That of padding is 0.
// A window that is shorter than the longest document, of attention that is not causal, throws
// c10::Error. Torch's exceptions pass through.
torch::Tensor SelfAttention(const torch::Tensor& query, const torch::Tensor& key,
                            const torch::Tensor& value, const HeadAngles& angles,
                            RowAttentionOptions options);

}  // namespace gemini::trainer
