// SPDX-License-Identifier: Apache-2.0
// Reads what a run learns from or evaluates on, whichever kind of file it is in:
//     FILE.safetensors  rows of tokens of which the answers are learned (example_data.h), or whose
//                       labels are (labeled_data.h), or images with labels (image_data.h), or
//                       alignments (alignment_data.h)
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
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/data/alignment_data.h"
#include "trainer/data/example_data.h"
#include "trainer/data/image_data.h"
#include "trainer/data/labeled_data.h"
#include "trainer/data/row_needs.h"
#include "trainer/data/token_data.h"
#include "trainer/data/token_fingerprint.h"
#include "trainer/families/task_spec.h"

namespace gemini::trainer {

class TrainingData {
 public:
  // Opens the file. A text is cut into rows of `sequence_tokens`, > 1. Other rows have a length of
  // their own, whatever `sequence_tokens` is.
  static absl::StatusOr<TrainingData> Open(const std::string& path, int64_t sequence_tokens);
  // Returns the task of the file's rows, and what their labels are. Reads the header alone.
  static absl::StatusOr<TaskSpec> TaskOf(const std::string& path);

  TaskSpec task() const;
  // Returns how many rows, images or alignments the file has.
  int64_t num_sequences() const;
  // Returns the tokens of a row, or the residues of an alignment. The file must not have images.
  int64_t sequence_tokens() const;
  // What a run's speed counts, and how many of these a row has.
  absl::string_view item_name() const { return images() != nullptr ? "images" : "tokens"; }
  int64_t items_per_row() const { return images() != nullptr ? 1 : sequence_tokens(); }
  // The rows as rows with answers, or with labels of their own, as images or as alignments. Where
  // all are null, they are those of a text: each token is its own label, and that of the first in a
  // row is not predicted.
  const ExampleData* examples() const { return std::get_if<ExampleData>(&file_); }
  const LabeledData* labeled() const { return std::get_if<LabeledData>(&file_); }
  const ImageData* images() const { return std::get_if<ImageData>(&file_); }
  const AlignmentData* alignments() const { return std::get_if<AlignmentData>(&file_); }
  // The file must be a text.
  const TokenData& text() const { return std::get<TokenData>(file_); }

  // Whether a model has to know which documents a row has: there may be several, or padding that it
  // would see. CheckRows has found out.
  bool has_documents() const { return has_documents_; }
  // Returns how many tokens each document of a row has. Unless has_documents, the row is one.
  absl::StatusOr<std::vector<int64_t>> ReadDocuments(int64_t index) const;

  // Returns a text of the metadata of a file of rows of text; empty where there is none.
  std::string Metadata(const std::string& key) const;

  // Returns what the file is now. Reads its ends.
  absl::StatusOr<TokenFingerprint> Fingerprint() const;

  // Reads every row, as the files' own checks do. `sees_padding`: padding behind a text makes a
  // difference to it.
  absl::Status CheckRows(const RowNeeds& needs, bool sees_padding);

 private:
  using File = std::variant<TokenData, ExampleData, LabeledData, ImageData, AlignmentData>;
  explicit TrainingData(File file) : file_(std::move(file)) {}

  const TokenRows* rows() const;  // Null: a text, images, or alignments.

  File file_;
  bool has_documents_ = false;
};

}  // namespace gemini::trainer
