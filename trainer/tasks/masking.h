// SPDX-License-Identifier: Apache-2.0
// Decides which tokens of a row are hidden for a masked task: 15% of those that may be, of which
// 80% become the mask token, 10% another token, and 10% stay as they are. What is drawn depends on
// the seed, the row's place in the run and the token's position alone, so that a resumed run hides
// what an undisturbed one does, and each pass over the data hides other tokens.
// Pure: no I/O, no clock.
// Source: Devlin et al., "BERT", arXiv:1810.04805, section 3.1.
#pragma once
#include <cstdint>

#include "absl/types/span.h"

namespace gemini::trainer {

struct MaskDraw {
  uint64_t seed = 0;
  int64_t row = 0;             // In a run: of all that it has learned from so far.
  bool is_evaluation = false;  // Then `row` is that of the data, and the draws are others.
};

struct MaskTokens {
  int64_t mask = 0;        // Stands for a hidden token.
  int64_t vocab_size = 0;  // Other tokens are from 0 on below it.
};

// Hides tokens of a row. `labels` holds the token where it may be hidden, and -1 elsewhere; it
// keeps those that are to be predicted. Where none was drawn, the one that came closest is. Returns
// how many are predicted: 0 where none may be.
int64_t MaskTokensOfRow(const MaskDraw& draw, const MaskTokens& tokens, absl::Span<int64_t> row,
                        absl::Span<int64_t> labels);

}  // namespace gemini::trainer
