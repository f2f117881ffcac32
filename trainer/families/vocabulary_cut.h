// SPDX-License-Identifier: Apache-2.0
// Decides how the head's arithmetic goes through the vocabulary, and how a table of the vocabulary
// is cut into parameters. The head is computed by pieces of the vocabulary, whose size follows from
// the table's shape and the kind of processor alone. A block is a parameter that holds one or more
// pieces, so that DEVICE need not hold the whole table and its gradient at once. How many blocks
// there are changes no bit: each but the last is a multiple of 2,048 elements, by which gradient
// norms (1,024) and moments of 8 bits (2,048) are computed.
// Pure: no Torch, no I/O.
#pragma once
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "gemini/element_type.h"

namespace gemini::trainer {

struct VocabularyCut {
  int64_t rows = 0;             // Of the table, one a token.
  int64_t width = 0;            // Elements of a row.
  int64_t rows_of_piece = 0;    // The last piece may have fewer. 1 to `rows`.
  int64_t pieces_of_block = 1;  // The last block may have fewer.
  int64_t tokens_of_piece = 0;  // Rows of the hidden state that are computed at a time.

  int64_t num_pieces() const { return (rows + rows_of_piece - 1) / rows_of_piece; }
  int64_t num_blocks() const { return (num_pieces() + pieces_of_block - 1) / pieces_of_block; }
  int64_t rows_of_block() const { return rows_of_piece * pieces_of_block; }
  // The first row of block i. That of block num_blocks() is `rows`.
  int64_t first_row(int64_t block) const {
    return block < num_blocks() ? block * rows_of_block() : rows;
  }
};

// How a model cuts its tables.
struct VocabularyOptions {
  int64_t blocks = 1;  // Parameters that a table becomes, or somewhat fewer (CutIntoBlocks).
  // Whether a CPU computes with them. A GPU launches some 30 kernels for each piece.
  bool on_cpu = true;
};

// Returns the pieces of a table [rows, width], all in one block: at most 16 of them, each but the
// last one of 2^19 elements or more, or for a GPU of 2^25.
VocabularyCut CutIntoPieces(int64_t rows, int64_t width, bool on_cpu);
// The same, in the blocks that are asked for.
VocabularyCut CutTable(int64_t rows, int64_t width, const VocabularyOptions& options);

// Returns `cut` with `num_blocks` blocks, or somewhat fewer: blocks hold equally many pieces, at
// least one each.
VocabularyCut CutIntoBlocks(VocabularyCut cut, int64_t num_blocks);

// Returns one, unless such a table and its gradient, of `element`, exceed an eighth of
// `device_bytes`; then as few blocks as bring one and its gradient below that, if pieces can.
int64_t NumBlocksFor(const VocabularyCut& cut, ElementType element, int64_t device_bytes);

// Returns the name of a table's block, where there are several: "weight_3".
std::string NameOfBlock(absl::string_view table, int64_t block);
// Returns the name that the files have for a parameter: that of the table for one of its blocks,
// else its own.
absl::string_view NameInFiles(absl::string_view parameter);

}  // namespace gemini::trainer
