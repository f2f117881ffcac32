// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/vocabulary_cut.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kMostPieces = 16;
// Smaller products do not fill the threads of a processor; on a GPU, the kernels of smaller ones
// are shorter than their launches.
constexpr int64_t kLeastPieceElements = int64_t{1} << 19;
constexpr int64_t kLeastPieceElementsOnGpu = int64_t{1} << 25;
// By so many elements 8-bit moments have a scale; gradient norms are summed by half as many.
constexpr int64_t kUnitElements = 2048;
constexpr int64_t kUnitRows = 64;  // By which matrix products are tiled.
constexpr int64_t kMostTokensOfPiece = 1024;
constexpr int64_t kTokenUnit = 16;
constexpr int64_t kMostLogits = int64_t{1} << 26;  // In fp32: 256 MiB.
// Of DEVICE, what a block and its gradient may take.
constexpr int64_t kDevicePart = 8;
constexpr absl::string_view kTensorName = "weight";

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

VocabularyCut CutIntoPieces(int64_t rows, int64_t width, bool on_cpu) {
  const int64_t least_elements = on_cpu ? kLeastPieceElements : kLeastPieceElementsOnGpu;
  VocabularyCut cut = {.rows = rows, .width = width};
  const int64_t unit = std::max(kUnitElements / std::gcd(kUnitElements, width), kUnitRows);
  const int64_t least = std::max(DivideUp(rows, kMostPieces), DivideUp(least_elements, width));
  cut.rows_of_piece = std::min(DivideUp(least, unit) * unit, rows);
  cut.tokens_of_piece = std::clamp<int64_t>(kMostLogits / rows, 1, kMostTokensOfPiece);
  cut.pieces_of_block = cut.num_pieces();
  if (cut.tokens_of_piece > kTokenUnit) cut.tokens_of_piece -= cut.tokens_of_piece % kTokenUnit;
  return cut;
}

VocabularyCut CutTable(int64_t rows, int64_t width, const VocabularyOptions& options) {
  return CutIntoBlocks(CutIntoPieces(rows, width, options.on_cpu), options.blocks);
}

VocabularyCut CutIntoBlocks(VocabularyCut cut, int64_t num_blocks) {
  cut.pieces_of_block =
      DivideUp(cut.num_pieces(), std::clamp<int64_t>(num_blocks, 1, cut.num_pieces()));
  return cut;
}

int64_t NumBlocksFor(const VocabularyCut& cut, ElementType element, int64_t device_bytes) {
  const int64_t piece_bytes = 2 * cut.rows_of_piece * cut.width * ElementBytes(element);
  const int64_t most_pieces = std::max<int64_t>(device_bytes / kDevicePart / piece_bytes, 1);
  return DivideUp(cut.num_pieces(), most_pieces);
}

std::string NameOfBlock(absl::string_view table, int64_t block) {
  return absl::StrCat(table, "_", block);
}

absl::string_view NameInFiles(absl::string_view parameter) {
  const size_t line = parameter.rfind('_');
  if (line == absl::string_view::npos || line + 1 == parameter.size()) return parameter;
  const absl::string_view table = parameter.substr(0, line);
  const absl::string_view number = parameter.substr(line + 1);
  const bool is_block = absl::EndsWith(table, kTensorName) &&
                        std::all_of(number.begin(), number.end(), absl::ascii_isdigit);
  return is_block ? table : parameter;
}

}  // namespace gemini::trainer
