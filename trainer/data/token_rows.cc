// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/token_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr char kLayout[] = "layout";
// Tokens that are checked at one time: large enough for the disk, small enough for the cache.
constexpr int64_t kPieceTokens = 128 * 1024;

}  // namespace

absl::StatusOr<TokenRows> TokenRows::Open(RowFile file) {
  TokenRows rows(std::move(file));
  rows.is_packed_ = rows.CheckMetadata(kLayout, "pack").ok();
  if (!rows.is_packed_) GEMINI_RETURN_IF_ERROR(rows.CheckMetadata(kLayout, "pad"));
  const SafetensorsTensor* const tokens = rows.reader().Find("tokens");
  if (tokens == nullptr || tokens->dtype != SafetensorsDtype::kI32 || tokens->shape.size() != 2) {
    return absl::InvalidArgumentError(tokens == nullptr
                                          ? absl::StrCat(rows.path(), ": has no tensor tokens")
                                          : absl::StrCat(rows.path(), ": tensor tokens is ",
                                                         SafetensorsDtypeName(tokens->dtype), " [",
                                                         absl::StrJoin(tokens->shape, ", "),
                                                         "], expected I32 [rows, tokens]"));
  }
  rows.tokens_ = *tokens;
  GEMINI_ASSIGN_OR_RETURN(rows.documents_,
                          rows.FindLikeTokens("documents", SafetensorsDtype::kI32));
  GEMINI_RETURN_IF_ERROR(rows.CheckMetadata("rows", absl::StrCat(rows.num_rows())));
  GEMINI_RETURN_IF_ERROR(rows.CheckMetadata("sequence", absl::StrCat(rows.sequence_tokens())));
  if (rows.num_rows() < 1 || rows.sequence_tokens() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(rows.path(), ": has ", rows.num_rows(), " rows of ", rows.sequence_tokens(),
                     " tokens; at least one row of two tokens is needed to learn from"));
  }
  return rows;
}

absl::StatusOr<std::vector<int32_t>> TokenRows::Read(int64_t row) const {
  GEMINI_RETURN_IF_ERROR(CheckIndex(row, num_rows()));
  std::vector<int32_t> tokens(static_cast<size_t>(sequence_tokens()));
  GEMINI_RETURN_IF_ERROR(
      ReadElements(reader(), tokens_, row * sequence_tokens(), absl::MakeSpan(tokens)));
  if (vocab_size_ > 0) GEMINI_RETURN_IF_ERROR(CheckTokens(row, tokens, vocab_size_));
  return tokens;
}

absl::StatusOr<std::vector<int64_t>> TokenRows::ReadDocuments(int64_t row) const {
  GEMINI_RETURN_IF_ERROR(CheckIndex(row, num_rows()));
  std::vector<int32_t> numbers(static_cast<size_t>(sequence_tokens()));
  GEMINI_RETURN_IF_ERROR(
      ReadElements(reader(), documents_, row * sequence_tokens(), absl::MakeSpan(numbers)));
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < numbers.size() && numbers[i] != 0; ++i) {
    if (i == 0 || numbers[i] != numbers[i - 1]) lengths.push_back(0);
    ++lengths.back();
  }
  if (!lengths.empty()) return lengths;
  return absl::InvalidArgumentError(absl::StrCat(
      path(), ": row ", row, " is padding alone: leave the file alone while a run reads it"));
}

absl::Status TokenRows::CheckTokens(int64_t row, absl::Span<const int32_t> tokens,
                                    int64_t vocab_size) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path(), ": token ", tokens[i], " in row ", row, ", position ", i,
                     ", is not in the model's vocabulary of ", vocab_size,
                     ": prepare the data with the tokenizer of this model"));
  }
  return absl::OkStatus();
}

absl::Status TokenRows::ForEachPiece(int64_t vocab_size,
                                     absl::FunctionRef<absl::Status(const Piece&)> visit) {
  const int64_t length = sequence_tokens();
  const int64_t most_rows = std::min(num_rows(), std::max<int64_t>(kPieceTokens / length, 1));
  Piece piece;
  for (int64_t first = 0; first < num_rows(); first += most_rows) {
    piece.first_row = first;
    piece.num_rows = std::min(most_rows, num_rows() - first);
    for (const auto& [tensor, values] :
         {std::pair(&tokens_, &piece.tokens), std::pair(&documents_, &piece.documents)}) {
      values->resize(static_cast<size_t>(piece.num_rows * length));
      GEMINI_RETURN_IF_ERROR(
          ReadElements(reader(), *tensor, first * length, absl::MakeSpan(*values)));
    }
    for (int64_t i = 0; i < piece.num_rows; ++i) {
      GEMINI_RETURN_IF_ERROR(
          CheckTokens(first + i,
                      absl::MakeConstSpan(piece.tokens)
                          .subspan(static_cast<size_t>(i * length), static_cast<size_t>(length)),
                      vocab_size));
    }
    GEMINI_RETURN_IF_ERROR(visit(piece));
  }
  vocab_size_ = vocab_size;
  return absl::OkStatus();
}

}  // namespace gemini::trainer
