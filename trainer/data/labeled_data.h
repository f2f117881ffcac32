// SPDX-License-Identifier: Apache-2.0
// Reads rows of tokens that have labels, as tools/prepare_data.py makes them of labeled texts. Each
// row is one text, or a pair of them, with padding behind it.
//     types  U8 [rows, S]  of each token its type; missing where all are of type 0
// stands beside the tensors of all rows (token_rows.h), and their labels (row_labels.h).
// Blocks, Owner, Errors: as of TokenRows.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/row_labels.h"
#include "trainer/data/row_needs.h"
#include "trainer/data/token_rows.h"

namespace gemini::trainer {

class LabeledData {
 public:
  // Takes an open file and checks the rest of its header.
  static absl::StatusOr<LabeledData> Open(TokenRows rows);

  const TokenRows& rows() const { return rows_; }
  // What the labels are.
  const TaskSpec& task() const { return labels_.task(); }
  bool has_types() const { return types_.has_value(); }
  // Whether rows end in padding. CheckRows has found out.
  bool has_padding() const { return has_padding_; }

  // Reads the tokens of row `index` (0 to num_rows - 1), and their types if there are some; both
  // have sequence_tokens elements.
  absl::Status Read(int64_t index, absl::Span<int64_t> tokens, absl::Span<int64_t> types) const;
  // Returns a row's labels: the class of a single label, else num_labels numbers.
  absl::StatusOr<std::vector<float>> ReadLabels(int64_t index) const;

  // Reads all of the file. INVALID_ARGUMENT: a token, a type or a label that the model does not
  // have, or a row that is not one text with padding behind it. UNIMPLEMENTED: a row has padding
  // where the model does not take it.
  absl::Status CheckRows(const RowNeeds& needs);

 private:
  explicit LabeledData(TokenRows rows) : rows_(std::move(rows)) {}

  absl::Status CheckTypes(int64_t first_row, absl::Span<const uint8_t> types) const;
  absl::Status CheckDocuments(int64_t row, absl::Span<const int32_t> documents,
                              bool takes_padding) const;

  TokenRows rows_;
  RowLabels labels_;
  std::optional<SafetensorsTensor> types_;
  bool has_padding_ = false;
  int64_t num_token_types_ = 0;  // Of the model, as CheckRows was told; 0: it has not run.
};

}  // namespace gemini::trainer
