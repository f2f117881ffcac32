// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/example_data.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {

absl::StatusOr<ExampleData> ExampleData::Open(TokenRows rows) {
  ExampleData data(std::move(rows));
  const TokenRows& file = data.rows_;
  GEMINI_ASSIGN_OR_RETURN(data.answers_, file.FindLikeTokens("answers", SafetensorsDtype::kU8));
  if (!data.is_causal()) {
    GEMINI_ASSIGN_OR_RETURN(data.mask_token_,
                            file.Number("mask_token", 0, std::numeric_limits<int32_t>::max()));
  }
  return data;
}

absl::Status ExampleData::Read(int64_t index, absl::Span<int64_t> tokens,
                               absl::Span<int64_t> labels) const {
  GEMINI_RETURN_IF_ERROR(rows_.CheckIndex(index, rows_.num_rows()));
  const auto length = static_cast<size_t>(rows_.sequence_tokens());
  if (tokens.size() != length || labels.size() != length) {
    return absl::InvalidArgumentError(absl::StrCat(rows_.path(), ": room for ", tokens.size(),
                                                   " tokens and ", labels.size(),
                                                   " labels, a row has ", length));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::vector<int32_t> values, rows_.Read(index));
  std::vector<uint8_t> answers(length);
  GEMINI_RETURN_IF_ERROR(ReadElements(rows_.reader(), answers_, index * rows_.sequence_tokens(),
                                      absl::MakeSpan(answers)));
  // The file may have been written to since it was checked.
  GEMINI_ASSIGN_OR_RETURN(const int64_t num_answers, CountIn(index, answers));
  if (!num_answers_.empty()) {
    const int64_t before = num_answers_[static_cast<size_t>(index)];
    if (num_answers != before) {
      return absl::InvalidArgumentError(
          absl::StrCat(rows_.path(), ": row ", index, " has ", num_answers, " answers and had ",
                       before, " when it was opened: leave the file alone while a run reads it"));
    }
  }
  for (size_t i = 0; i < length; ++i) {
    tokens[i] = values[i];
    labels[i] = answers[i] != 0 ? values[i] : -1;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ExampleData::CountAnswers(int64_t index) const {
  GEMINI_RETURN_IF_ERROR(rows_.CheckIndex(index, rows_.num_rows()));
  if (num_answers_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(rows_.path(), ": rows were not checked"));
  }
  return num_answers_[static_cast<size_t>(index)];
}

absl::StatusOr<int64_t> ExampleData::CountIn(int64_t row, absl::Span<const uint8_t> answers) const {
  int64_t count = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const bool is_first = i == 0 && is_causal();
    if (answers[i] > 1 || (is_first && answers[i] != 0)) {
      const int64_t element = row * rows_.sequence_tokens() + static_cast<int64_t>(i);
      return absl::InvalidArgumentError(absl::StrCat(
          rows_.path(), ": answers has ", answers[i], " at byte ", answers_.offset_bytes + element,
          ", row ", row, ", position ", i, ", expected 0",
          is_first ? ", for nothing comes before the first token" : " or 1",
          ": prepare the data again"));
    }
    count += answers[i];
  }
  if (count > 0) return count;
  return absl::InvalidArgumentError(
      absl::StrCat(rows_.path(), ": row ", row, " has no answer among its ", answers.size(),
                   " tokens, so there is nothing to learn from it: leave it out"));
}

absl::Status ExampleData::CheckDocuments(int64_t row, absl::Span<const int32_t> documents,
                                         absl::Span<const uint8_t> answers,
                                         bool takes_padding) const {
  for (size_t i = 0; i < documents.size(); ++i) {
    const int32_t before = i == 0 ? 1 : documents[i - 1];
    const bool begins = documents[i] != before;
    const bool is_next = rows_.is_packed() && i > 0 && before > 0 && documents[i] == before + 1;
    if (is_next && is_causal() && answers[i] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(rows_.path(), ": row ", row, " has an answer at position ", i,
                       ", where document ", documents[i], " begins: prepare the data again"));
    }
    if (begins && !is_next && (i == 0 || documents[i] != 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          rows_.path(), ": row ", row, " has document ", documents[i], " at position ", i,
          i == 0 ? std::string(", expected 1") : absl::StrCat(", behind document ", before),
          ": prepare the data again"));
    }
    if (begins && !is_next && !takes_padding) {
      return absl::UnimplementedError(absl::StrCat(
          rows_.path(), ": row ", row, " ends in ", documents.size() - i,
          " tokens of padding, which the loss of this model's routers would count: set ",
          "output_router_logits to false in its config.json"));
    }
    if (documents[i] == 0 && answers[i] != 0) {
      return absl::InvalidArgumentError(absl::StrCat(rows_.path(), ": row ", row,
                                                     " has padding at position ", i,
                                                     " that is an answer: prepare the data again"));
    }
  }
  return absl::OkStatus();
}

absl::Status ExampleData::CheckRows(const RowNeeds& needs) {
  if (mask_token_ >= needs.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        rows_.path(), ": its mask_token is ", mask_token_, ", and the model has a vocabulary of ",
        needs.vocab_size, ": prepare the data with the tokenizer of this model"));
  }
  const int64_t length = rows_.sequence_tokens();
  std::vector<uint8_t> answers;
  std::vector<int32_t> num_answers;
  bool has_padding = false;
  const auto check = [&](const TokenRows::Piece& piece) -> absl::Status {
    answers.resize(piece.tokens.size());
    GEMINI_RETURN_IF_ERROR(
        ReadElements(rows_.reader(), answers_, piece.first_row * length, absl::MakeSpan(answers)));
    for (int64_t i = 0; i < piece.num_rows; ++i) {
      const auto of_row = [&](const auto& values) {
        return absl::MakeConstSpan(values).subspan(static_cast<size_t>(i * length),
                                                   static_cast<size_t>(length));
      };
      const int64_t row = piece.first_row + i;
      GEMINI_ASSIGN_OR_RETURN(const int64_t count_of_row, CountIn(row, of_row(answers)));
      num_answers.push_back(static_cast<int32_t>(count_of_row));
      GEMINI_RETURN_IF_ERROR(
          CheckDocuments(row, of_row(piece.documents), of_row(answers), needs.takes_padding));
      has_padding = has_padding || of_row(piece.documents).back() == 0;
    }
    return absl::OkStatus();
  };
  GEMINI_RETURN_IF_ERROR(rows_.ForEachPiece(needs.vocab_size, check));
  num_answers_ = std::move(num_answers);
  has_padding_ = has_padding;
  return absl::OkStatus();
}

}  // namespace gemini::trainer
