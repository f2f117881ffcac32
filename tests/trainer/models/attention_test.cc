// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention.h"

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadSize = 6;
constexpr int64_t kSequence = 5;

// Returns one head [sequence, head size] of the first sequence, rotated pair by pair.
torch::Tensor HeadOf(const torch::Tensor& x, int64_t head, const BatchContext& context) {
  torch::Tensor out = x[0].slice(1, head * kHeadSize, (head + 1) * kHeadSize).clone();
  if (!context.cosine.defined()) return out;
  const torch::Tensor before = out.clone();
  for (int64_t t = 0; t < kSequence; ++t) {
    for (int64_t i = 0; i < kHeadSize / 2; ++i) {
      const int64_t j = i + kHeadSize / 2;
      const torch::Tensor cosine = context.cosine[t][i], sine = context.sine[t][i];
      out[t][i] = before[t][i] * cosine - before[t][j] * sine;
      out[t][j] = before[t][j] * cosine + before[t][i] * sine;
    }
  }
  return out;
}

// The oracle is the sum over earlier positions, one head after another.
TEST(AttentionTest, HeadsAreSharedInOrderRotatedInPairsAndSeeWhatIsBefore) {
  torch::manual_seed(1);
  const torch::Tensor query = torch::randn({1, kSequence, kHeads * kHeadSize});
  const torch::Tensor key = torch::randn({1, kSequence, kKvHeads * kHeadSize});
  const torch::Tensor value = torch::randn({1, kSequence, kKvHeads * kHeadSize});
  const AttentionSpec spec = {
      .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_size = kHeadSize, .dropout = 0.5};
  const double scale = 0.3;
  for (const BatchContext& context :
       {BatchContext{}, MakeRotaryContext({}, kHeadSize, kSequence, torch::kFloat32)}) {
    const torch::Tensor out =
        CausalAttention(query, key, value, spec, scale, context, /*training=*/false);
    ASSERT_EQ(out.sizes(), query.sizes());
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t kv_head = head / (kHeads / kKvHeads);
      const torch::Tensor q = HeadOf(query, head, context), k = HeadOf(key, kv_head, context);
      const torch::Tensor v = HeadOf(value, kv_head, {});
      for (int64_t t = 0; t < kSequence; ++t) {
        const torch::Tensor weights = torch::softmax(k.slice(0, 0, t + 1).mv(q[t]) * scale, 0);
        const torch::Tensor expected = v.slice(0, 0, t + 1).t().mv(weights);
        EXPECT_TRUE(torch::allclose(HeadOf(out, head, {})[t], expected, 1e-5, 1e-6))
            << "head " << head << ", position " << t;
      }
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
