// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
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

// The oracle is the sum over the positions that a token sees, one head after another.
TEST(AttentionTest, HeadsAreSharedInOrderRotatedInPairsAndSeeWhatTheyMay) {
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
  const BatchContext context =
      MakeBatchContext(kinds, kHeadSize, kSequence, kSequence, torch::kFloat32);
  // A window of the sequence's length, or longer, changes nothing.
  const std::vector<RowAttentionOptions> all_options = {{.scale = scale, .window = kSequence},
                                                        {.scale = scale, .window = 2},
                                                        {.scale = scale, .causal = false}};
  for (size_t i = 0; i < all_options.size() * kinds.size(); ++i) {
    const HeadAngles& angles = context.angles[i / all_options.size()];
    const RowAttentionOptions& options = all_options[i % all_options.size()];
    SCOPED_TRACE(absl::StrCat("kind ", i / all_options.size(), ", causal ", options.causal,
                              ", window ", options.window));
    torch::Tensor out = SelfAttention(query, key, value, angles, options);
    ASSERT_EQ(out.sizes(), (std::vector<int64_t>{1, kSequence, kHeads * kHeadSize}));
    EXPECT_TRUE(out.is_contiguous());
    out = out.view(query.sizes());
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t kv_head = head / (kHeads / kKvHeads);
      const torch::Tensor q = HeadOf(query, head, angles), k = HeadOf(key, kv_head, angles);
      const torch::Tensor v = HeadOf(value, kv_head, {});
      for (int64_t t = 0; t < kSequence; ++t) {
        const int64_t first = options.causal ? std::max<int64_t>(t - options.window + 1, 0) : 0;
        const int64_t end = options.causal ? t + 1 : kSequence;
        const torch::Tensor weights = torch::softmax(k.slice(0, first, end).mv(q[t]) * scale, 0);
        const torch::Tensor expected = v.slice(0, first, end).t().mv(weights);
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
  for (const RowAttentionOptions& alone : std::vector<RowAttentionOptions>{
           {.scale = 0.3}, {.scale = 0.3, .window = 3}, {.scale = 0.3, .causal = false}}) {
    RowAttentionOptions options = alone;
    options.documents = documents;
    const torch::Tensor out =
        SelfAttention(query, key, value,
                      MakeBatchContext(kinds, kHeadSize, kTokens, documents->longest(),
                                       torch::kFloat32, documents)
                          .angles[0],
                      options);
    std::vector<torch::Tensor> expected(3);
    for (int64_t row = 0; row < 2; ++row) {
      int64_t begin = 0;
      for (const int64_t length : documents->lengths[static_cast<size_t>(row)]) {
        const auto part = [&](const torch::Tensor& x) {
          return x.slice(0, row, row + 1).slice(1, begin, begin + length);
        };
        const torch::Tensor document = SelfAttention(
            part(query), part(key), part(value),
            MakeBatchContext(kinds, kHeadSize, length, length, torch::kFloat32).angles[0], alone);
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

// The oracle has all scores of a row at once, in fp64.
torch::Tensor ToAllOfADocument(const std::vector<torch::Tensor>& in, double scale,
                               const RowDocuments& documents) {
  torch::Tensor number = torch::zeros(in[0].sizes().slice(0, 2), torch::kInt64);  // 0 for padding.
  for (int64_t row = 0; row < number.size(0); ++row) {
    int64_t begin = 0, count = 0;
    for (const int64_t length : documents.lengths[static_cast<size_t>(row)]) {
      number[row].slice(0, begin, begin + length).fill_(++count);
      begin += length;
    }
  }
  const int64_t share = in[0].size(2) / in[1].size(2);
  const torch::Tensor query = in[0].transpose(1, 2);
  const torch::Tensor key = in[1].transpose(1, 2).repeat_interleave(share, 1);
  const torch::Tensor value = in[2].transpose(1, 2).repeat_interleave(share, 1);
  const torch::Tensor apart = (number.unsqueeze(2) != number.unsqueeze(1)).unsqueeze(1);
  const torch::Tensor weights =
      torch::softmax((query.matmul(key.transpose(2, 3)) * scale).masked_fill(apart, -INFINITY), -1);
  const torch::Tensor is_token = (number > 0).unsqueeze(1).unsqueeze(-1);
  return (weights * is_token).matmul(value).transpose(1, 2).flatten(-2);
}

TEST(AttentionTest, WhatIsNotCausalSeesAllOfItsDocumentInAnyTypeAndWithTheSameBitsAgain) {
  torch::manual_seed(1);
  constexpr int64_t kTokens = 40;
  const auto whole = std::make_shared<RowDocuments>(RowDocuments{{{kTokens}, {kTokens}}});
  const auto some = std::make_shared<RowDocuments>(RowDocuments{{{33, 7}, {20, 1, 12}}});
  for (const auto& [type, tolerance] :
       {std::pair{torch::kFloat32, 2e-6}, {torch::kBFloat16, 2e-2}}) {
    for (const SharedDocuments& documents : {SharedDocuments(), SharedDocuments(some)}) {
      SCOPED_TRACE(absl::StrCat(c10::toString(type), ", documents ", documents != nullptr));
      std::vector<torch::Tensor> in, exact;
      for (const int64_t heads : {kHeads, kKvHeads, kKvHeads}) {
        in.push_back(torch::randn({2, kTokens, heads, kHeadSize}).to(type).requires_grad_());
        exact.push_back(in.back().detach().to(torch::kFloat64).requires_grad_());
      }
      const torch::Tensor weight = torch::randn({2, kTokens, kHeads * kHeadSize}).to(type);
      const auto results = [&](const torch::Tensor& out, const std::vector<torch::Tensor>& of) {
        std::vector<torch::Tensor> all =
            torch::autograd::grad({out}, of, {weight.to(out.scalar_type())});
        all.push_back(out.detach());
        return all;
      };
      const auto ours = [&] {
        return results(SelfAttention(in[0], in[1], in[2], {},
                                     {.scale = 0.7, .causal = false, .documents = documents}),
                       in);
      };
      const std::vector<torch::Tensor> found = ours(), again = ours();
      const std::vector<torch::Tensor> expected =
          results(ToAllOfADocument(exact, 0.7, documents == nullptr ? *whole : *documents), exact);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), type);
        EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(),
                  tolerance * expected[i].abs().max().item<double>())
            << i;
        EXPECT_TRUE(torch::equal(found[i], again[i])) << i;
        if (documents != nullptr) {
          EXPECT_EQ(found[i][1].slice(0, 33).abs().max().item<double>(), 0) << "padding, " << i;
        }
      }
    }
  }
}

TEST(AttentionTest, AWindowOfWhatIsNotCausalIsRefused) {
  const torch::Tensor x = torch::randn({1, 4, 1, 2});
  EXPECT_THROW(SelfAttention(x, x, x, {}, {.causal = false, .window = 3}), c10::Error);
}

TEST(AttentionTest, DocumentsOfOtherRowsAreRefused) {
  const torch::Tensor x = torch::randn({2, 4, 1, 2});
  RowAttentionOptions options;
  options.documents = std::make_shared<RowDocuments>(RowDocuments{{{4}}});
  EXPECT_THROW(SelfAttention(x, x, x, {}, options), c10::Error);
}

}  // namespace
}  // namespace gemini::trainer
