// SPDX-License-Identifier: Apache-2.0
// Rows of tokens of which some are answers: what tools/prepare_data.py makes of chats. A run learns
// to predict the answers from the tokens before them, and nothing else.
//     tokens     I32 [rows, S]
//     answers    U8 [rows, S]   1 if the token is an answer, else 0
//     documents  I32 [rows, S]  the number of the token's document in its row, from 1 on; 0 is
//                               padding, which there is at a row's end only
// It is a safetensors file, whose metadata name the format's version ("gemini.format"), the task,
// both sizes ("rows", "sequence"), and whether a row may have several documents ("layout": "pack",
// or "pad"). The first token of a document is no answer. Rows, and positions in them, are counted
// from 0.
// Padding needs no mask: causal attention looks at no later token.
// Blocks: on the disk. Only requested rows are read. Nothing is mapped, so that a file truncated
//         while in use is an error and not a fault.
// Owner:  any thread; an open file may be shared.
// Errors: INVALID_ARGUMENT: not such a file, or its content is wrong. DATA_LOSS: it ends before the
//         bytes that its header promises. NOT_FOUND and others: as open(2). All name the file.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/files/safetensors_format.h"
#include "trainer/data/token_fingerprint.h"

namespace gemini::trainer {

class ExampleData {
 public:
  // Opens the file and checks its header.
  static absl::StatusOr<ExampleData> Open(const std::string& path);

  int64_t num_sequences() const { return tokens_.shape[0]; }
  int64_t sequence_tokens() const { return tokens_.shape[1]; }
  // Whether a row may have several documents, which attention has to keep apart.
  bool has_documents() const { return has_documents_; }

  // Reads row `index` (0 to num_sequences - 1) into `tokens`, and into `labels` each token that is
  // an answer, or -1. Both have sequence_tokens elements.
  absl::Status Read(int64_t index, absl::Span<int64_t> tokens, absl::Span<int64_t> labels) const;

  // Returns how many tokens each document of a row has, in their order.
  absl::StatusOr<std::vector<int64_t>> ReadDocuments(int64_t index) const;

  // Returns the number of a row's answers, which is above 0. Reads nothing. FAILED_PRECONDITION:
  // the rows were not checked.
  absl::StatusOr<int64_t> CountAnswers(int64_t index) const;

  // Returns what the file is now. Reads the ends of its tensors.
  absl::StatusOr<TokenFingerprint> Fingerprint() const;

  // Reads all of the file, and keeps 4 bytes a row. INVALID_ARGUMENT: a token is not from 0 to
  // `vocab_size` - 1, a row has no answer, or documents or answers lie where none may.
  // UNIMPLEMENTED: a row has padding where the model does not take it.
  absl::Status CheckRows(int64_t vocab_size, bool takes_padding);

 private:
  explicit ExampleData(SafetensorsReader reader) : reader_(std::move(reader)) {}

  absl::Status CheckIndex(int64_t index) const;
  // Returns the number of answers in a row. It is INVALID_ARGUMENT if there is none, if a value is
  // neither 0 nor 1, or if the first token is an answer.
  absl::StatusOr<int64_t> CountIn(int64_t row, absl::Span<const uint8_t> answers) const;
  absl::Status CheckTokens(int64_t row, absl::Span<const int32_t> tokens, int64_t vocab_size) const;
  absl::Status CheckDocuments(int64_t row, absl::Span<const int32_t> documents,
                              absl::Span<const uint8_t> answers, bool takes_padding) const;

  SafetensorsReader reader_;
  SafetensorsTensor tokens_, answers_, documents_;
  bool has_documents_ = false;
  // What CheckRows has found: how many answers each row has, and of which vocabulary all tokens
  // are.
  std::vector<int32_t> num_answers_;
  int64_t vocab_size_ = 0;
};

}  // namespace gemini::trainer
