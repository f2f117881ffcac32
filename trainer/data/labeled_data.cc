// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/labeled_data.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
absl::StatusOr<LabeledData> LabeledData::Open(TokenRows opened) {
  LabeledData data(std::move(opened));
  const TokenRows& rows = data.rows_;
  GEMINI_ASSIGN_OR_RETURN(data.labels_, RowLabels::Open(rows, rows.num_rows()));
  if (rows.reader().Find("types") != nullptr) {
    GEMINI_ASSIGN_OR_RETURN(data.types_, rows.FindLikeTokens("types", SafetensorsDtype::kU8));
  }
  if (rows.is_packed()) {
    return absl::InvalidArgumentError(absl::StrCat(
        rows.path(), ": its layout is 'pack', but each row has its own label: expected 'pad'"));
  }
  return data;
}

absl::Status LabeledData::Read(int64_t index, absl::Span<int64_t> tokens,
                               absl::Span<int64_t> types) const {
  GEMINI_ASSIGN_OR_RETURN(const std::vector<int32_t> values, rows_.Read(index));
  const size_t num_types = has_types() ? values.size() : 0;
  if (tokens.size() != values.size() || types.size() != num_types) {
    return absl::InvalidArgumentError(
        absl::StrCat(rows_.path(), ": room for ", tokens.size(), " tokens and ", types.size(),
                     " types, a row has ", values.size(), " and ", num_types));
  }
  std::ranges::copy(values, tokens.begin());
  if (num_types == 0) return absl::OkStatus();
  std::vector<uint8_t> bytes(num_types);
  GEMINI_RETURN_IF_ERROR(ReadElements(rows_.reader(), *types_, index * rows_.sequence_tokens(),
                                      absl::MakeSpan(bytes)));
  // The file may have been written to since it was checked.
  if (num_token_types_ > 0) GEMINI_RETURN_IF_ERROR(CheckTypes(index, bytes));
  std::ranges::copy(bytes, types.begin());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> LabeledData::ReadLabels(int64_t index) const {
  GEMINI_RETURN_IF_ERROR(rows_.CheckIndex(index, rows_.num_rows()));
  return labels_.Read(rows_, index);
}

absl::Status LabeledData::CheckTypes(int64_t first_row, absl::Span<const uint8_t> types) const {
  const auto wrong = std::ranges::find_if(
      types, [this](uint8_t type) { return int64_t{type} >= num_token_types_; });
  if (wrong == types.end()) return absl::OkStatus();
  const int64_t place = wrong - types.begin();
  return absl::InvalidArgumentError(absl::StrCat(
      rows_.path(), ": row ", first_row + place / rows_.sequence_tokens(), " has a token of type ",
      int64_t{*wrong}, " at position ", place % rows_.sequence_tokens(), ", and the model has ",
      num_token_types_, " types: prepare the data with the tokenizer of this model"));
}

absl::Status LabeledData::CheckDocuments(int64_t row, absl::Span<const int32_t> documents,
                                         bool takes_padding) const {
  const auto end = std::ranges::find_if(documents, [](int32_t number) { return number != 1; });
  const auto wrong = std::find_if(end, documents.end(), [](int32_t number) { return number != 0; });
  if (end == documents.begin() || wrong != documents.end()) {
    const auto place = end == documents.begin() ? end : wrong;
    return absl::InvalidArgumentError(
        absl::StrCat(rows_.path(), ": row ", row, " has document ", *place, " at position ",
                     place - documents.begin(), ", expected ", place == documents.begin() ? 1 : 0,
                     ": prepare the data again"));
  }
  if (end == documents.end() || takes_padding) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(rows_.path(), ": row ", row, " ends in ", documents.end() - end,
                   " tokens of padding, which the loss of this model's routers would count: set ",
                   "output_router_logits to false in its config.json"));
}

absl::Status LabeledData::CheckRows(const RowNeeds& needs) {
  labels_.set_num_labels(needs.task.num_labels);
  num_token_types_ = std::max<int64_t>(needs.num_token_types, 1);
  const int64_t length = rows_.sequence_tokens();
  std::vector<uint8_t> types;
  bool has_padding = false;
  const auto check = [&](const TokenRows::Piece& piece) -> absl::Status {
    if (has_types()) {
      types.resize(piece.tokens.size());
      GEMINI_RETURN_IF_ERROR(
          ReadElements(rows_.reader(), *types_, piece.first_row * length, absl::MakeSpan(types)));
      GEMINI_RETURN_IF_ERROR(CheckTypes(piece.first_row, types));
    }
    for (int64_t i = 0; i < piece.num_rows; ++i) {
      GEMINI_RETURN_IF_ERROR(ReadLabels(piece.first_row + i).status());
      const absl::Span<const int32_t> documents =
          absl::MakeConstSpan(piece.documents)
              .subspan(static_cast<size_t>(i * length), static_cast<size_t>(length));
      GEMINI_RETURN_IF_ERROR(CheckDocuments(piece.first_row + i, documents, needs.takes_padding));
      has_padding = has_padding || documents.back() == 0;
    }
    return absl::OkStatus();
  };
  GEMINI_RETURN_IF_ERROR(rows_.ForEachPiece(needs.vocab_size, check));
  has_padding_ = has_padding;
  return absl::OkStatus();
}

}  // namespace gemini::trainer
