// SPDX-License-Identifier: Apache-2.0
// Reads rows of tokens some of which are answers, as tools/prepare_data.py makes them of chats, and
// of text for a masked task. A run learns to predict the answers, and nothing else: from the tokens
// before them, or, of a masked task, some of them from all others.
//     answers    U8 [rows, S]   1 if the token is an answer, else 0
// stands beside the tensors of all rows (token_rows.h). The first token of a causal document is no
// answer. The metadata of a masked task say which token stands for a hidden one ("mask_token").
// Padding needs no mask where attention is causal: it looks at no later token.
// Blocks, Owner, Errors: as of TokenRows.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/row_needs.h"
#include "trainer/data/token_rows.h"

namespace gemini::trainer {

class ExampleData {
 public:
  // Takes an open file and checks the rest of its header.
  static absl::StatusOr<ExampleData> Open(TokenRows rows);

  const TokenRows& rows() const { return rows_; }
  // The token that stands for a hidden one. 0 where the task is not masked.
  int64_t mask_token() const { return mask_token_; }
  // Whether rows end in padding. CheckRows has found out.
  bool has_padding() const { return has_padding_; }

  // Reads row `index` (0 to num_rows - 1) into `tokens`, and into `labels` each token that is an
  // answer, or -1. Both have sequence_tokens elements.
  absl::Status Read(int64_t index, absl::Span<int64_t> tokens, absl::Span<int64_t> labels) const;

  // Returns the number of a row's answers, which is above 0. Reads nothing. FAILED_PRECONDITION:
  // the rows were not checked.
  absl::StatusOr<int64_t> CountAnswers(int64_t index) const;

  // Reads all of the file, and keeps 4 bytes a row. INVALID_ARGUMENT: a token is not from 0 to
  // vocab_size - 1, a row has no answer, or documents or answers lie where none may.
  // UNIMPLEMENTED: a row has padding where the model does not take it.
  absl::Status CheckRows(const RowNeeds& needs);

 private:
  explicit ExampleData(TokenRows rows) : rows_(std::move(rows)) {}

  bool is_causal() const { return rows_.task() == TaskKind::kCausal; }
  // Returns the number of answers in a row. It is INVALID_ARGUMENT if there is none, if a value is
  // neither 0 nor 1, or if the first token is an answer that nothing comes before.
  absl::StatusOr<int64_t> CountIn(int64_t row, absl::Span<const uint8_t> answers) const;
  absl::Status CheckDocuments(int64_t row, absl::Span<const int32_t> documents,
                              absl::Span<const uint8_t> answers, bool takes_padding) const;

  TokenRows rows_;
  SafetensorsTensor answers_;
  int64_t mask_token_ = 0;
  bool has_padding_ = false;
  std::vector<int32_t> num_answers_;  // Of each row, as CheckRows has found.
};

}  // namespace gemini::trainer
