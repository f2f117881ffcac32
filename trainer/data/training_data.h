// SPDX-License-Identifier: Apache-2.0
// Rows of tokens that a run learns from or evaluates on, whichever kind of file they are in:
//     FILE.safetensors  rows of which the answers are learned (example_data.h)
//     other names       one text, of which every token is learned (token_data.h)
// Blocks, Owner, Errors: as of these.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/example_data.h"
#include "trainer/data/token_data.h"
#include "trainer/data/token_fingerprint.h"

namespace gemini::trainer {

class TrainingData {
 public:
  // Opens the file. A text is cut into rows of `sequence_tokens`, > 1. The rows of examples have a
  // length of their own, whatever `sequence_tokens` is.
  static absl::StatusOr<TrainingData> Open(const std::string& path, int64_t sequence_tokens);

  int64_t num_sequences() const;
  int64_t sequence_tokens() const;
  // Whether each token is its own label. That of the first one in a row is not predicted.
  bool labels_all() const { return std::holds_alternative<TokenData>(file_); }

  // Whether a row may have several documents.
  bool has_documents() const;

  // Reads row `index` (0 to num_sequences - 1) into `tokens`, of sequence_tokens elements. Unless
  // labels_all, its labels are read into `labels`, of as many: a token, or -1 where that is not to
  // be predicted.
  absl::Status Read(int64_t index, absl::Span<int64_t> tokens, absl::Span<int64_t> labels) const;

  // Returns how many tokens each document of a row has. Unless has_documents, the row is one.
  absl::StatusOr<std::vector<int64_t>> ReadDocuments(int64_t index) const;

  // Returns how many tokens of a row are predicted: at least one. Reads nothing; of examples the
  // rows were checked.
  absl::StatusOr<int64_t> CountLabels(int64_t index) const;

  // Returns what the file is now. Reads its ends.
  absl::StatusOr<TokenFingerprint> Fingerprint() const;

  // Reads every row, as ExampleData::CheckRows and TokenData::CheckVocabulary do.
  absl::Status CheckRows(int64_t vocab_size, bool takes_padding);

 private:
  using File = std::variant<TokenData, ExampleData>;
  explicit TrainingData(File file) : file_(std::move(file)) {}

  File file_;
};

}  // namespace gemini::trainer
