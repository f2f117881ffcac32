// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention.h"

#include <algorithm>
#include <memory>
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

TEST(AttentionTest, DocumentsOfARowAreRotatedAndAttendedToAsAlone) {
  torch::manual_seed(1);
  constexpr int64_t kTokens = 12;
  const auto make = [](int64_t heads) {
    return torch::randn({2, kTokens, heads, kHeadSize}).set_requires_grad(true);
  };
  const torch::Tensor query = make(kHeads), key = make(kKvHeads), value = make(kKvHeads);
  const torch::Tensor weight = torch::randn({2, kTokens, kHeads * kHeadSize});
  const auto documents = std::make_shared<RowDocuments>(RowDocuments{{{5, 7}, {4, 1, 3}}});
  const std::vector<BlockKind> kinds = {{.rotary = RotarySpec{}}};
  const auto gradients = [&](const torch::Tensor& out, const torch::Tensor& of) {
    return torch::autograd::grad({(out * of).sum()}, {query, key, value});
  };
  for (const int64_t window : {0, 3}) {
    const RowAttentionOptions alone = {.scale = 0.3, .window = window};
    RowAttentionOptions options = alone;
    options.documents = documents;
    const torch::Tensor out = CausalAttention(
        query, key, value,
        MakeBatchContext(kinds, kHeadSize, kTokens, torch::kFloat32, documents).angles[0], options);
    std::vector<torch::Tensor> expected(3);
    for (int64_t row = 0; row < 2; ++row) {
      int64_t begin = 0;
      for (const int64_t length : documents->lengths[static_cast<size_t>(row)]) {
        const auto part = [&](const torch::Tensor& x) {
          return x.slice(0, row, row + 1).slice(1, begin, begin + length);
        };
        const torch::Tensor document = CausalAttention(
            part(query), part(key), part(value),
            MakeBatchContext(kinds, kHeadSize, length, torch::kFloat32).angles[0], alone);
        EXPECT_TRUE(torch::allclose(part(out), document, 1e-5, 1e-6)) << row << " " << begin;
        const auto some = gradients(document, part(weight));
        for (size_t i = 0; i < some.size(); ++i) {
          expected[i] = expected[i].defined() ? expected[i] + some[i] : some[i];
        }
        begin += length;
      }
    }
    EXPECT_EQ(out[1].slice(0, 8).abs().max().item<double>(), 0) << "padding";
    const auto found = gradients(out, weight);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-5, 1e-6)) << i;
    }
  }
}

TEST(AttentionTest, DocumentsOfOtherRowsAreRefused) {
  const torch::Tensor x = torch::randn({2, 4, 1, 2});
  RowAttentionOptions options;
  options.documents = std::make_shared<RowDocuments>(RowDocuments{{{4}}});
  EXPECT_THROW(CausalAttention(x, x, x, {}, options), c10::Error);
}

}  // namespace
}  // namespace gemini::trainer
