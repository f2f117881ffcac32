// SPDX-License-Identifier: Apache-2.0
// Attention in a ring is attention on one rank.
#include "trainer/parallel/ring_attention.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kTokens = 24, kHeadSize = 8;

struct Case {
  const char* name;
  int64_t num_ranks;
  bool zigzag;
  RowAttentionOptions options = {.scale = 0.5};
  torch::ScalarType type = torch::kFloat64;
  double tolerance = 1e-14;
};

// A window is shorter than a slice, so that rows see nothing of some keys that others see.
const Case kCases[] = {
    {"contiguous", 2, false},
    {"zigzag", 3, true},
    {"window", 2, false, {.scale = 0.5, .window = 3}},
    {"window_in_zigzag", 2, true, {.scale = 0.5, .window = 3}},
    {"capped", 4, true, {.scale = 0.5, .soft_cap = 1}},
    {"dropped",
     4,
     true,
     {.scale = 0.5, .dropout = {.probability = 0.3, .key = 5}, .first_head = 4, .all_heads = 12}},
    {"large_scores", 2, true, {.scale = 300}, torch::kFloat64, 1e-9},
    // Such a row has a sum from other keys that is far below that of none.
    {"large_scores_in_a_window", 2, false, {.scale = 100, .window = 3}, torch::kFloat32, 1e-3},
    {"fp32", 4, true, {.scale = 0.5, .window = 5}, torch::kFloat32, 1e-6},
    {"bf16", 3, true, {.scale = 0.5}, torch::kBFloat16, 2e-2}};

class RingAttentionTest : public ::testing::TestWithParam<Case> {};

TEST_P(RingAttentionTest, ItIsThatOfOneRank) {
  torch::set_num_threads(1);
  const Case& c = GetParam();
  at::Generator generator = at::detail::createCPUGenerator(3);
  const auto random = [&](int64_t heads) {
    return torch::randn({kBatch, heads, kTokens, kHeadSize}, generator, c.type);
  };
  const std::vector<Tensor> whole = {random(kHeads), random(kKeyHeads), random(kKeyHeads)};
  const Tensor out_gradient = random(kHeads);
  for (const Tensor& x : whole) x.requires_grad_();
  const Tensor expected = RowAttention(whole[0], whole[1], whole[2], c.options);
  expected.backward(out_gradient);
  RunThreadRanks(c.num_ranks, [&](Communicator& me) {
    const RankLine line = {&me, &me.world()};
    const auto mine = [&](const Tensor& x) {
      std::vector<Tensor> slices;
      for (const TokenSlice& slice : SlicesOfPart({me.rank(), me.num_ranks()}, c.zigzag, kTokens)) {
        slices.push_back(x.detach().narrow(2, slice.position, slice.count));
      }
      return torch::cat(slices, 2);
    };
    std::vector<Tensor> own;
    for (const Tensor& x : whole) own.push_back(mine(x).requires_grad_());
    const Tensor out = RingAttention(own[0], own[1], own[2], c.options, line, c.zigzag);
    out.backward(mine(out_gradient));
    const auto expect_near = [&](const Tensor& x, const Tensor& other, const std::string& what) {
      const double largest = other.abs().max().item<double>();
      EXPECT_LE((x - mine(other)).abs().max().item<double>(), c.tolerance * largest) << what;
    };
    expect_near(out.detach(), expected, "out");
    for (size_t i = 0; i < own.size(); ++i) {
      expect_near(own[i].grad(), whole[i].grad(), "gradient " + std::to_string(i));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, RingAttentionTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

TEST(RingAttentionOfAllKeysTest, ItIsRefused) {
  const Tensor x = torch::randn({1, 1, 4, 2});
  EXPECT_THROW(RingAttention(x, x, x, {.causal = false}, {}, /*zigzag=*/false), c10::Error);
}

TEST(SlicesOfPartTest, AZigzagHasAnEarlyAndALateSlice) {
  const auto slices = SlicesOfPart({1, 3}, /*zigzag=*/true, 24);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].position, 4);
  EXPECT_EQ(slices[1].position, 16);
  EXPECT_EQ(slices[1].place, 4);
  EXPECT_EQ(SlicesOfPart({1, 3}, /*zigzag=*/false, 24)[0].position, 8);
}

}  // namespace
}  // namespace gemini::trainer
