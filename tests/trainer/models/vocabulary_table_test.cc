// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/vocabulary_table.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 100, kWidth = 16, kRowsOfPiece = 24;

std::vector<Tensor> Blocks(const Tensor& table, const VocabularyCut& cut) {
  std::vector<Tensor> blocks;
  for (int64_t i = 0; i < cut.num_blocks(); ++i) {
    blocks.push_back(table.slice(0, cut.first_row(i), cut.first_row(i + 1))
                         .detach()
                         .clone()
                         .set_requires_grad(true));
  }
  return blocks;
}

class LookUpTest : public ::testing::TestWithParam<int64_t> {
 protected:
  LookUpTest() { torch::manual_seed(1); }
  const VocabularyCut cut_ = {.rows = kRows,
                              .width = kWidth,
                              .rows_of_piece = kRowsOfPiece,
                              .pieces_of_block = GetParam(),
                              .tokens_of_piece = 8};
};

// Also of a row that is looked up often, of the first and last rows of blocks, and of the padding.
TEST_P(LookUpTest, RowsAndGradientsHaveTheBitsOfAWholeTable) {
  constexpr int64_t kPadding = 30;
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const Tensor table = torch::randn({kRows, kWidth}).to(type);
    Tensor ids = torch::randint(0, kRows, {3, 40}, torch::kInt64);
    ids.slice(1, 0, 8) = torch::tensor({0, 23, 24, 47, 48, 99, 30, 30});
    ids.slice(1, 8, 20) = 25;
    const Tensor gradient = torch::randn({3, 40, kWidth}).to(type);
    const Tensor whole = table.clone().set_requires_grad(true);
    const Tensor expected = torch::embedding(whole, ids, kPadding);
    expected.backward(gradient);

    const std::vector<Tensor> blocks = Blocks(table, cut_);
    const Tensor rows = LookUp(blocks, cut_, ids, kPadding);
    EXPECT_TRUE(torch::equal(rows, expected));
    rows.backward(gradient);
    std::vector<Tensor> gradients;
    for (const Tensor& block : blocks) gradients.push_back(block.grad());
    EXPECT_TRUE(torch::equal(torch::cat(gradients), whole.grad()));
    EXPECT_EQ(whole.grad()[kPadding].abs().max().item<double>(), 0);

    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(LookUp(blocks, cut_, ids, kPadding), expected));
  }
}

TEST_P(LookUpTest, AFrozenBlockGetsNoGradient) {
  std::vector<Tensor> blocks = Blocks(torch::randn({kRows, kWidth}), cut_);
  blocks.back().set_requires_grad(false);
  const Tensor ids = torch::arange(kRows, torch::kInt64);
  const Tensor rows = LookUp(blocks, cut_, ids, -1);
  if (blocks.size() == 1) {
    EXPECT_FALSE(rows.requires_grad());
    return;
  }
  rows.sum().backward();
  EXPECT_FALSE(blocks.back().grad().defined());
  EXPECT_TRUE(blocks.front().grad().eq(1).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(PiecesOfBlock, LookUpTest, ::testing::Values(1, 2, 3, 5));

class CountFirings : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CountFirings(int& count) : count_(count) {}
  void operator()(const Tensor& leaf) override {
    EXPECT_TRUE(leaf.grad().defined());
    ++count_;
  }

 private:
  int& count_;
};

TEST(AddToGradientTest, TheFirstBecomesTheGradientAndLaterOnesAreAdded) {
  const Tensor leaf = torch::zeros({4}, torch::requires_grad());
  int firings = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<CountFirings>(firings));
  const Tensor computed = leaf * 2;
  const torch::NoGradGuard no_grad;
  Tensor first = torch::ones({4});
  const void* const memory = first.const_data_ptr();
  AddToGradient(leaf, std::move(first));
  EXPECT_EQ(leaf.grad().const_data_ptr(), memory);
  AddToGradient(leaf, torch::full({4}, 2.0f));
  EXPECT_TRUE(leaf.grad().eq(3).all().item<bool>());
  EXPECT_EQ(firings, 2);
  EXPECT_THROW(AddToGradient(computed, torch::ones({4})), c10::Error);
  EXPECT_THROW(AddToGradient(torch::ones({4}), torch::ones({4})), c10::Error);
}

}  // namespace
}  // namespace gemini::trainer
