// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/alignment_data.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr char kSequences[] = "sequences";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr int64_t kNoLabel = -1;

}  // namespace

bool AlignmentData::IsOne(const RowFile& file) {
  return file.task() == TaskKind::kDistogram || file.reader().metadata().contains(kSequences);
}

absl::StatusOr<AlignmentData> AlignmentData::Open(RowFile file) {
  AlignmentData data(std::move(file));
  const RowFile& opened = data.file_;
  if (opened.task() != TaskKind::kMasked && opened.task() != TaskKind::kDistogram) {
    return opened.WrongMetadata("task", "masked or distogram, for it is of alignments");
  }
  GEMINI_ASSIGN_OR_RETURN(const int64_t rows, opened.Number("rows", 1, kMost));
  GEMINI_ASSIGN_OR_RETURN(const int64_t sequences, opened.Number(kSequences, 1, kMost));
  GEMINI_ASSIGN_OR_RETURN(const int64_t residues, opened.Number("residues", 1, kMost));
  const std::vector<int64_t> shape = {rows, sequences, residues};
  GEMINI_ASSIGN_OR_RETURN(data.tokens_, opened.Find("tokens", SafetensorsDtype::kI32, shape));
  data.task_.kind = opened.task();
  if (opened.task() == TaskKind::kMasked) {
    GEMINI_ASSIGN_OR_RETURN(data.mask_token_, opened.Number("mask_token", 0, kMost));
    GEMINI_ASSIGN_OR_RETURN(data.labels_, opened.Find("answers", SafetensorsDtype::kU8, shape));
    return data;
  }
  GEMINI_ASSIGN_OR_RETURN(data.task_.num_labels, opened.Number("num_bins", 1, kMostLabels));
  GEMINI_ASSIGN_OR_RETURN(
      data.labels_, opened.Find("labels", SafetensorsDtype::kI32, {rows, residues, residues}));
  return data;
}

absl::Status AlignmentData::ReadAnswers(int64_t row, absl::Span<const int64_t> tokens,
                                        absl::Span<int64_t> labels) const {
  std::vector<uint8_t> answers(labels.size());
  GEMINI_RETURN_IF_ERROR(
      ReadElements(file_.reader(), labels_, row * labels_per_row(), absl::MakeSpan(answers)));
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] > 1) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": answers has ", answers[i],
                                                     " in row ", row, ", element ", i,
                                                     ", expected 0 or 1"));
    }
    labels[i] = answers[i] != 0 ? tokens[i] : kNoLabel;
  }
  return absl::OkStatus();
}

absl::Status AlignmentData::ReadBins(int64_t row, absl::Span<int64_t> labels) const {
  std::vector<int32_t> bins(labels.size());
  GEMINI_RETURN_IF_ERROR(
      ReadElements(file_.reader(), labels_, row * labels_per_row(), absl::MakeSpan(bins)));
  for (size_t i = 0; i < bins.size(); ++i) {
    if (bins[i] < kNoLabel || bins[i] >= task_.num_labels) {
      const auto residues = static_cast<size_t>(num_residues());
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": row ", row, " has the bin ", bins[i], " for residues ", i / residues,
          " and ", i % residues, ", expected -1 to ", task_.num_labels - 1));
    }
    labels[i] = bins[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> AlignmentData::ReadRow(int64_t row, absl::Span<int64_t> tokens,
                                               absl::Span<int64_t> labels) const {
  std::vector<int32_t> values(tokens.size());
  GEMINI_RETURN_IF_ERROR(
      ReadElements(file_.reader(), tokens_, row * tokens_per_row(), absl::MakeSpan(values)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || (vocab_size_ > 0 && values[i] >= vocab_size_)) {
      const auto residues = static_cast<size_t>(num_residues());
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": token ", values[i], " in row ", row, ", sequence ", i / residues,
          ", residue ", i % residues, ", is not in the model's vocabulary of ", vocab_size_));
    }
    tokens[i] = values[i];
  }
  GEMINI_RETURN_IF_ERROR(task_.kind == TaskKind::kMasked ? ReadAnswers(row, tokens, labels)
                                                         : ReadBins(row, labels));
  const int64_t count = std::ranges::count_if(labels, [](int64_t label) { return label >= 0; });
  if (count > 0) return count;
  return absl::InvalidArgumentError(
      absl::StrCat(file_.path(), ": row ", row, " has no ",
                   task_.kind == TaskKind::kMasked ? "residue that may be hidden" : "known bin",
                   ", so there is nothing to learn from it: leave it out"));
}

absl::Status AlignmentData::Read(int64_t index, absl::Span<int64_t> tokens,
                                 absl::Span<int64_t> labels) const {
  GEMINI_RETURN_IF_ERROR(file_.CheckIndex(index, num_rows()));
  if (tokens.size() != static_cast<size_t>(tokens_per_row()) ||
      labels.size() != static_cast<size_t>(labels_per_row())) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": room for ", tokens.size(), " residues and ", labels.size(),
                     " labels, an alignment has ", tokens_per_row(), " and ", labels_per_row()));
  }
  GEMINI_ASSIGN_OR_RETURN(const int64_t count, ReadRow(index, tokens, labels));
  // The file may have been written to since it was checked.
  if (num_labels_.empty() || num_labels_[static_cast<size_t>(index)] == count) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(file_.path(), ": row ", index, " has ", count, " labels and had ",
                   num_labels_[static_cast<size_t>(index)],
                   " when it was opened: leave the file alone while a run reads it"));
}

absl::StatusOr<int64_t> AlignmentData::CountLabels(int64_t index) const {
  GEMINI_RETURN_IF_ERROR(file_.CheckIndex(index, num_rows()));
  if (num_labels_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(file_.path(), ": rows were not checked"));
  }
  return num_labels_[static_cast<size_t>(index)];
}

absl::Status AlignmentData::CheckRows(const RowNeeds& needs) {
  if (num_sequences() != needs.num_sequences) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_.path(), ": has alignments of ", num_sequences(), " sequences, and the model takes ",
        needs.num_sequences, ": set num_sequences in its config.json, or take other data"));
  }
  if (mask_token_ >= needs.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": its mask_token is ", mask_token_,
                     ", and the model has a vocabulary of ", needs.vocab_size));
  }
  vocab_size_ = needs.vocab_size;
  std::vector<int64_t> tokens(static_cast<size_t>(tokens_per_row()));
  std::vector<int64_t> labels(static_cast<size_t>(labels_per_row()));
  std::vector<int64_t> num_labels;
  for (int64_t row = 0; row < num_rows(); ++row) {
    GEMINI_ASSIGN_OR_RETURN(num_labels.emplace_back(),
                            ReadRow(row, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  }
  num_labels_ = std::move(num_labels);
  return absl::OkStatus();
}

}  // namespace gemini::trainer
