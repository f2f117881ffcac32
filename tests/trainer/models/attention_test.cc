// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadSize = 6;
constexpr int64_t kSequence = 5;

// Returns one head [sequence, head size] of the first sequence, rotated pair by pair.
torch::Tensor HeadOf(const torch::Tensor& x, int64_t head, const HeadAngles& angles) {
  torch::Tensor out = x[0].select(1, head).clone();
  if (!angles.cosine.defined()) return out;
  const torch::Tensor before = out.clone();
  const int64_t rotated = angles.cosine.size(1);
  for (int64_t t = 0; t < kSequence; ++t) {
    for (int64_t pair = 0; pair < rotated / 2; ++pair) {
      const int64_t i = angles.interleaved ? 2 * pair : pair;
      const int64_t j = angles.interleaved ? i + 1 : i + rotated / 2;
      const torch::Tensor cosine = angles.cosine[t][i], sine = angles.sine[t][i];
      out[t][i] = before[t][i] * cosine - before[t][j] * sine;
      out[t][j] = before[t][j] * cosine + before[t][i] * sine;
    }
  }
  return out;
}

// The oracle is the sum over earlier positions, one head after another.
TEST(AttentionTest, HeadsAreSharedInOrderRotatedInPairsAndSeeWhatIsBefore) {
  torch::manual_seed(1);
  const torch::Tensor query = torch::randn({1, kSequence, kHeads, kHeadSize});
  const torch::Tensor key = torch::randn({1, kSequence, kKvHeads, kHeadSize});
  const torch::Tensor value = torch::randn({1, kSequence, kKvHeads, kHeadSize});
  const double scale = 0.3;
  const std::vector<BlockKind> kinds = {
      {},
      {.rotary = RotarySpec{}},
      {.rotary = RotarySpec{.interleaved = true}},
      {.rotary = RotarySpec{.rotated_fraction = 0.7}},  // Four elements of six.
      {.rotary = RotarySpec{.rotated_fraction = 0.7, .interleaved = true}}};
  const BatchContext context = MakeBatchContext(kinds, kHeadSize, kSequence, torch::kFloat32);
  // A window of the sequence's length, or longer, changes nothing.
  for (size_t i = 0; i < 2 * kinds.size(); ++i) {
    const HeadAngles& angles = context.angles[i / 2];
    const int64_t window = i % 2 == 0 ? kSequence : 2;
    SCOPED_TRACE(absl::StrCat("kind ", i / 2, ", window ", window));
    torch::Tensor out =
        CausalAttention(query, key, value, angles, {.scale = scale, .window = window});
    ASSERT_EQ(out.sizes(), (std::vector<int64_t>{1, kSequence, kHeads * kHeadSize}));
    EXPECT_TRUE(out.is_contiguous());
    out = out.view(query.sizes());
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t kv_head = head / (kHeads / kKvHeads);
      const torch::Tensor q = HeadOf(query, head, angles), k = HeadOf(key, kv_head, angles);
      const torch::Tensor v = HeadOf(value, kv_head, {});
      for (int64_t t = 0; t < kSequence; ++t) {
        const int64_t first = std::max<int64_t>(t - window + 1, 0);
        const torch::Tensor weights = torch::softmax(k.slice(0, first, t + 1).mv(q[t]) * scale, 0);
        const torch::Tensor expected = v.slice(0, first, t + 1).t().mv(weights);
        EXPECT_TRUE(torch::allclose(HeadOf(out, head, {})[t], expected, 1e-5, 1e-6))
            << "head " << head << ", position " << t;
      }
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
