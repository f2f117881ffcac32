// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/shard_cut.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ShardCutTest, TensorsBeginAtBlocksAndPartsAreEqual) {
  // 10 elements take three blocks of 4, 4 take one and 1 takes one: 20, padded to 24 for 3 ranks.
  const ShardCut cut({10, 4, 1}, 3, 4);
  EXPECT_EQ(cut.num_elements(), 24);
  EXPECT_EQ(cut.part_elements(), 8);
  EXPECT_EQ(cut.place(0), 0);
  EXPECT_EQ(cut.place(1), 12);
  EXPECT_EQ(cut.place(2), 16);
  EXPECT_THAT(cut.PiecesOf(0),
              ElementsAre(ShardPiece{.tensor = 0, .first = 0, .count = 8, .place = 0}));
  EXPECT_THAT(cut.PiecesOf(1),
              ElementsAre(ShardPiece{.tensor = 0, .first = 8, .count = 2, .place = 0},
                          ShardPiece{.tensor = 1, .first = 0, .count = 4, .place = 4}));
  EXPECT_THAT(cut.PiecesOf(2),
              ElementsAre(ShardPiece{.tensor = 2, .first = 0, .count = 1, .place = 0}));
}

TEST(ShardCutTest, ARankMayHaveNothing) {
  const ShardCut cut({5}, 4, 1024);
  EXPECT_EQ(cut.part_elements(), 1024);
  EXPECT_THAT(cut.PiecesOf(0), ElementsAre(ShardPiece{.tensor = 0, .count = 5}));
  for (const int64_t rank : {1, 2, 3}) EXPECT_THAT(cut.PiecesOf(rank), IsEmpty());
  const ShardCut empty({}, 4, 1024);
  EXPECT_EQ(empty.num_elements(), 0);
  EXPECT_THAT(empty.PiecesOf(3), IsEmpty());
}

TEST(ShardCutTest, OneRankHasAll) {
  const ShardCut cut({3000, 7}, 1, 1024);
  EXPECT_EQ(cut.num_elements(), 4096);
  EXPECT_THAT(cut.PiecesOf(0), ElementsAre(ShardPiece{.tensor = 0, .count = 3000},
                                           ShardPiece{.tensor = 1, .count = 7, .place = 3072}));
}

// Every element is some rank's, once, where the buffer has it, and no block is two ranks'.
TEST(ShardCutTest, RandomCutsShareOutEveryElement) {
  std::mt19937 random(1);
  const auto draw = [&random](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int run = 0; run < 2000; ++run) {
    std::vector<int64_t> sizes;
    for (int64_t i = draw(0, 6); i > 0; --i) sizes.push_back(draw(0, 100));
    const int64_t num_ranks = draw(1, 9);
    const int64_t block = draw(1, 16);
    const ShardCut cut(sizes, num_ranks, block);
    std::vector<int64_t> had(sizes.size());
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      int64_t end = 0;
      for (const ShardPiece& piece : cut.PiecesOf(rank)) {
        const auto tensor = static_cast<size_t>(piece.tensor);
        EXPECT_GE(piece.place, end);
        end = piece.place + piece.count;
        EXPECT_LE(end, cut.part_elements());
        EXPECT_GT(piece.count, 0);
        // In the order of ranks, a tensor's pieces follow one another.
        EXPECT_EQ(piece.first, had[tensor]);
        had[tensor] += piece.count;
        EXPECT_EQ(rank * cut.part_elements() + piece.place, cut.place(piece.tensor) + piece.first);
        EXPECT_EQ(piece.place % block, 0);
        EXPECT_EQ(piece.first % block, 0);
        EXPECT_TRUE(piece.count % block == 0 || had[tensor] == sizes[tensor]);
      }
    }
    EXPECT_EQ(had, sizes);
    EXPECT_EQ(cut.num_elements() % (num_ranks * block), 0);
  }
}

}  // namespace
}  // namespace gemini::trainer
