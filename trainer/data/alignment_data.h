// SPDX-License-Identifier: Apache-2.0
// Reads alignments that a pair trunk learns from. Each row is one, and the first of its sequences
// is the one that the others are aligned to:
//     tokens   I32 [rows, sequences, residues]  the number of each residue
// With it stands, of the masked task, whose metadata have "mask_token",
//     answers  U8 [rows, sequences, residues]   1: the residue may be hidden; 0: it may not
// or, of a distogram, whose metadata have "num_bins",
//     labels   I32 [rows, residues, residues]   the bin of each pair of residues; -1: it is unknown
// The metadata have "rows", "sequences" and "residues", too.
// Blocks, Owner, Errors: as of RowFile.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/row_file.h"
#include "trainer/data/row_needs.h"
#include "trainer/data/token_fingerprint.h"

namespace gemini::trainer {

class AlignmentData {
 public:
  // Says whether a file is one of alignments.
  static bool IsOne(const RowFile& file);
  // Takes an open file and checks the rest of its header.
  static absl::StatusOr<AlignmentData> Open(RowFile file);

  int64_t num_rows() const { return tokens_.shape[0]; }
  int64_t num_sequences() const { return tokens_.shape[1]; }
  int64_t num_residues() const { return tokens_.shape[2]; }
  int64_t tokens_per_row() const { return num_sequences() * num_residues(); }
  int64_t labels_per_row() const { return labels_.num_elements / num_rows(); }
  // The labels of a distogram are its bins.
  const TaskSpec& task() const { return task_; }
  int64_t mask_token() const { return mask_token_; }  // Of the masked task.

  // Reads row `index` (0 to num_rows - 1). Of the masked task a label is the residue where it may
  // be hidden, and else -1; there are labels_per_row of them.
  absl::Status Read(int64_t index, absl::Span<int64_t> tokens, absl::Span<int64_t> labels) const;
  // Returns how many labels of a row are not -1. FAILED_PRECONDITION: CheckRows has not run.
  absl::StatusOr<int64_t> CountLabels(int64_t index) const;

  // Reads all of the file, row by row. INVALID_ARGUMENT: a residue or a bin that the model does not
  // have, a row without labels, or alignments of another number of sequences than the model's.
  absl::Status CheckRows(const RowNeeds& needs);

  absl::StatusOr<TokenFingerprint> Fingerprint() const {
    return file_.FingerprintOf(tokens_.num_elements);
  }

 private:
  explicit AlignmentData(RowFile file) : file_(std::move(file)) {}

  // Reads a row into these, whose sizes are right, and returns how many labels are not -1.
  absl::StatusOr<int64_t> ReadRow(int64_t row, absl::Span<int64_t> tokens,
                                  absl::Span<int64_t> labels) const;
  absl::Status ReadAnswers(int64_t row, absl::Span<const int64_t> tokens,
                           absl::Span<int64_t> labels) const;
  absl::Status ReadBins(int64_t row, absl::Span<int64_t> labels) const;

  RowFile file_;
  TaskSpec task_;
  SafetensorsTensor tokens_;
  SafetensorsTensor labels_;  // Or the answers.
  int64_t mask_token_ = -1;
  int64_t vocab_size_ = 0;           // Of the model, as CheckRows was told; 0: it has not run.
  std::vector<int64_t> num_labels_;  // By row, likewise.
};

}  // namespace gemini::trainer
