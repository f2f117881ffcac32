// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention.h"

#include <mutex>
#include <numeric>
#include <tuple>
#include <vector>

#include "ATen/Context.h"
#include "ATen/OpMathType.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros_like.h"

namespace gemini::trainer {
namespace {

// Returns x [..., head size] with each pair (a, b) made (-b, a).
torch::Tensor TurnPairs(const torch::Tensor& x, bool interleaved) {
  if (interleaved) {
    return at::stack(
               {-x.slice(/*dim=*/-1, 1, std::nullopt, 2), x.slice(/*dim=*/-1, 0, std::nullopt, 2)},
               /*dim=*/-1)
        .flatten(-2);
  }
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.slice(/*dim=*/-1, half), x.slice(/*dim=*/-1, 0, half)}, /*dim=*/-1);
}

void SeedGenerator(torch::Device device, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

// Arguments and result: [batch, heads, sequence, head size].
torch::Tensor FusedAttention(const torch::Tensor& query, const torch::Tensor& key,
                             const torch::Tensor& value, const RowAttentionOptions& options) {
  const bool is_causal = options.causal && query.size(2) > 1;
  // By its name, which scaled_dot_product_attention would choose on a CPU, but not on the meta
  // device, where a step is foretold.
  if (!query.is_cuda()) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, /*dropout_p=*/0, is_causal, /*attn_mask=*/{}, options.scale));
  }
  if (options.dropout.probability > 0) {
    // Ranks with other heads or sequences must draw another mask.
    const int64_t heads = options.all_heads == 0 ? query.size(1) : options.all_heads;
    const int64_t first = options.first_sequence * heads + options.first_head;
    SeedGenerator(query.device(), options.dropout.key + static_cast<uint64_t>(first));
  }
  return at::scaled_dot_product_attention(query, key, value, /*attn_mask=*/{},
                                          options.dropout.probability, is_causal, options.scale,
                                          /*enable_gqa=*/key.size(1) != query.size(1));
}

// The same of each row's documents, apart. Splits and concatenations have gradients that touch each
// element once, however many documents there are.
torch::Tensor FusedAttentionOfDocuments(const torch::Tensor& query, const torch::Tensor& key,
                                        const torch::Tensor& value,
                                        const RowAttentionOptions& options) {
  const std::vector<torch::Tensor> queries = query.unbind(), keys = key.unbind(),
                                   values = value.unbind();
  std::vector<torch::Tensor> rows;
  for (size_t row = 0; row < queries.size(); ++row) {
    std::vector<int64_t> sizes = options.documents->lengths[row];
    const size_t num_documents = sizes.size();
    const int64_t padding =
        queries[row].size(1) - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (padding > 0) sizes.push_back(padding);
    const auto split = [&](const torch::Tensor& x) {
      return x.unsqueeze(0).split_with_sizes(sizes, /*dim=*/2);
    };
    const std::vector<torch::Tensor> query_parts = split(queries[row]),
                                     key_parts = split(keys[row]), value_parts = split(values[row]);
    std::vector<torch::Tensor> attended;
    for (size_t i = 0; i < num_documents; ++i) {
      attended.push_back(FusedAttention(query_parts[i], key_parts[i], value_parts[i], options));
    }
    if (padding > 0) attended.push_back(at::zeros_like(query_parts.back()));
    rows.push_back(at::cat(attended, /*dim=*/2));
  }
  return at::cat(rows);
}

}  // namespace

torch::Tensor RotateHeads(const torch::Tensor& x, const HeadAngles& angles) {
  if (!angles.cosine.defined()) return x;
  const int64_t size = angles.cosine.size(-1);
  if (size < x.size(-1)) {
    return at::cat({RotateHeads(x.slice(/*dim=*/-1, 0, size), angles), x.slice(/*dim=*/-1, size)},
                   /*dim=*/-1);
  }
  const torch::Tensor in = angles.in_fp32 ? x.to(at::toOpMathType(x.scalar_type())) : x;
  const torch::Tensor turned = TurnPairs(in, angles.interleaved);
  torch::Tensor out = in * angles.cosine;
  out += turned * angles.sine;  // In place: the graph reads neither.
  return out.to(x.scalar_type());
}

torch::Tensor SelfAttention(const torch::Tensor& query, const torch::Tensor& key,
                            const torch::Tensor& value, const HeadAngles& angles,
                            RowAttentionOptions options) {
  const bool has_documents = options.documents != nullptr;
  TORCH_CHECK(
      !has_documents || static_cast<int64_t>(options.documents->lengths.size()) == query.size(0),
      "documents of other rows than those of ", query.sizes());
  const int64_t longest = has_documents ? options.documents->longest() : query.size(1);
  if (options.window >= longest) options.window = 0;
  // In documents the GPU's kernel would draw the same mask for each.
  const bool fused = options.window == 0 && options.soft_cap == 0 &&
                     (options.dropout.probability == 0 || (query.is_cuda() && !has_documents));
  const torch::Tensor attended = (!fused          ? RowAttention
                                  : has_documents ? FusedAttentionOfDocuments
                                                  : FusedAttention)(
      RotateHeads(query.transpose(1, 2), angles), RotateHeads(key.transpose(1, 2), angles),
      value.transpose(1, 2), options);
  return attended.transpose(1, 2).flatten(-2);
}

}  // namespace gemini::trainer
