// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/vocabulary_cut.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// GPT-2, Llama 2 and 3, Gemma, OPT-350m's embedding, a small one, and shapes that are odd.
constexpr std::pair<int64_t, int64_t> kTables[] = {
    {50257, 768}, {32000, 4096}, {128256, 4096}, {256000, 2048}, {50272, 512},
    {512, 128},   {9000, 64},    {1, 1},         {100003, 33},   {7, 100000}};

std::vector<std::pair<std::pair<int64_t, int64_t>, bool>> TablesAndProcessors() {
  std::vector<std::pair<std::pair<int64_t, int64_t>, bool>> cases;
  for (const auto& table : kTables) {
    for (const bool on_cpu : {true, false}) cases.emplace_back(table, on_cpu);
  }
  return cases;
}

TEST(VocabularyCutTest, BlocksAreWholePiecesAndCoverTheTable) {
  for (const auto& [table, on_cpu] : TablesAndProcessors()) {
    const auto [rows, width] = table;
    const VocabularyCut pieces = CutIntoPieces(rows, width, on_cpu);
    ASSERT_GE(pieces.rows_of_piece, 1);
    EXPECT_LE(pieces.num_pieces(), 16) << rows << " " << width;
    EXPECT_EQ(pieces.num_blocks(), 1);
    EXPECT_GE(pieces.tokens_of_piece, 1);
    EXPECT_LE(pieces.tokens_of_piece * rows, int64_t{1} << 26) << "above 256 MiB of fp32 logits";
    for (const int64_t asked : {1, 2, 3, 5, 16, 100}) {
      const VocabularyCut cut = CutIntoBlocks(pieces, asked);
      EXPECT_LE(cut.num_blocks(), asked);
      // So that blocks change no bit.
      EXPECT_EQ(cut.rows_of_piece, pieces.rows_of_piece);
      EXPECT_EQ(cut.tokens_of_piece, pieces.tokens_of_piece);
      EXPECT_EQ(cut.first_row(0), 0);
      for (int64_t i = 0; i < cut.num_blocks(); ++i) {
        EXPECT_LT(cut.first_row(i), cut.first_row(i + 1));
        if (i > 0) {
          EXPECT_EQ(cut.first_row(i) * width % 2048, 0) << "of a norm or of moments";
        }
      }
      EXPECT_EQ(cut.first_row(cut.num_blocks()), rows);
    }
  }
}

TEST(VocabularyCutTest, SmallTablesAreOnePiece) {
  EXPECT_EQ(CutIntoPieces(512, 128, /*on_cpu=*/true).num_pieces(), 1);
  EXPECT_EQ(CutIntoPieces(9000, 64, /*on_cpu=*/true).num_pieces(), 2);
  EXPECT_EQ(CutIntoPieces(128256, 4096, /*on_cpu=*/true).num_pieces(), 16);
}

TEST(VocabularyCutTest, AGpuTakesLargerPieces) {
  EXPECT_EQ(CutIntoPieces(9000, 64, /*on_cpu=*/false).num_pieces(), 1);
  EXPECT_EQ(CutIntoPieces(50257, 1600, /*on_cpu=*/true).num_pieces(), 16);
  EXPECT_EQ(CutIntoPieces(50257, 1600, /*on_cpu=*/false).num_pieces(), 3);
  EXPECT_EQ(CutIntoPieces(128256, 4096, /*on_cpu=*/false).num_pieces(), 16);
}

TEST(VocabularyCutTest, ATableAndItsGradientTakeAnEighthOfDevice) {
  const VocabularyCut llama = CutIntoPieces(128256, 4096, /*on_cpu=*/true);  // 1.96 GiB in fp32.
  EXPECT_EQ(NumBlocksFor(llama, ElementType::kFp32, 32 * kGiB), 1);
  EXPECT_EQ(NumBlocksFor(llama, ElementType::kBf16, 16 * kGiB), 1);
  for (const int64_t device_bytes : {24 * kGiB, 12 * kGiB, 6 * kGiB, 3 * kGiB}) {
    for (const ElementType element : {ElementType::kFp32, ElementType::kBf16}) {
      const VocabularyCut cut = CutIntoBlocks(llama, NumBlocksFor(llama, element, device_bytes));
      EXPECT_LE(2 * cut.rows_of_block() * cut.width * ElementBytes(element), device_bytes / 8);
    }
  }
  // A piece is the least there is.
  EXPECT_EQ(NumBlocksFor(llama, ElementType::kFp32, 1), 16);
}

TEST(VocabularyCutTest, BlocksHaveTheNameOfTheirTableInFiles) {
  EXPECT_EQ(NameOfBlock("weight", 12), "weight_12");
  EXPECT_EQ(NameInFiles("model.embed_tokens.weight_12"), "model.embed_tokens.weight");
  for (const char* const name : {"model.embed_tokens.weight", "model.layers.0.weight_", "weight_1a",
                                 "model.layers.1.mlp.bias_1", "_1", ""}) {
    EXPECT_EQ(NameInFiles(name), name);
  }
}

}  // namespace
}  // namespace gemini::trainer
