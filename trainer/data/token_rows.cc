// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/token_rows.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/crc32c.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr char kFormat[] = "1";
constexpr char kLayout[] = "layout";
// Tokens that are checked at one time: large enough for the disk, small enough for the cache.
constexpr int64_t kPieceTokens = 128 * 1024;

// `value`: null where the metadata have none.
absl::Status WrongMetadata(const SafetensorsReader& reader, const std::string& key,
                           const std::string* value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      reader.path(), ": its ", key, " is ", value == nullptr ? "missing" : PrintableName(*value),
      ", expected ", expected, ": prepare the data by the tools/prepare_data.py of this version"));
}

const std::string* FindMetadata(const SafetensorsReader& reader, const std::string& key) {
  const auto found = reader.metadata().find(key);
  return found == reader.metadata().end() ? nullptr : &found->second;
}

// Refuses the file unless its metadata have that value.
absl::Status CheckMetadata(const SafetensorsReader& reader, const std::string& key,
                           absl::string_view expected) {
  const std::string* const value = FindMetadata(reader, key);
  if (value != nullptr && *value == expected) return absl::OkStatus();
  return WrongMetadata(reader, key, value, absl::StrCat("'", expected, "'"));
}

}  // namespace

absl::StatusOr<TokenRows> TokenRows::Open(const std::string& path) {
  GEMINI_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
  TokenRows rows(std::move(reader));
  GEMINI_RETURN_IF_ERROR(CheckMetadata(rows.reader_, "gemini.format", kFormat));
  GEMINI_ASSIGN_OR_RETURN(const std::string task, rows.Metadata("task"));
  const auto known = std::ranges::find(kTaskNames, absl::string_view(task));
  if (known == std::end(kTaskNames)) {
    return WrongMetadata(rows.reader_, "task", &task, absl::StrJoin(kTaskNames, ", "));
  }
  rows.task_ = static_cast<TaskKind>(known - std::begin(kTaskNames));
  const std::string* const layout = FindMetadata(rows.reader_, kLayout);
  rows.is_packed_ = layout != nullptr && *layout == "pack";
  if (!rows.is_packed_) GEMINI_RETURN_IF_ERROR(CheckMetadata(rows.reader_, kLayout, "pad"));
  const SafetensorsTensor* const tokens = rows.reader_.Find("tokens");
  if (tokens == nullptr || tokens->dtype != SafetensorsDtype::kI32 || tokens->shape.size() != 2) {
    return absl::InvalidArgumentError(
        tokens == nullptr
            ? absl::StrCat(path, ": has no tensor tokens")
            : absl::StrCat(path, ": tensor tokens is ", SafetensorsDtypeName(tokens->dtype), " [",
                           absl::StrJoin(tokens->shape, ", "), "], expected I32 [rows, tokens]"));
  }
  rows.tokens_ = *tokens;
  GEMINI_ASSIGN_OR_RETURN(rows.documents_,
                          rows.FindLikeTokens("documents", SafetensorsDtype::kI32));
  GEMINI_RETURN_IF_ERROR(CheckMetadata(rows.reader_, "rows", absl::StrCat(rows.num_rows())));
  GEMINI_RETURN_IF_ERROR(
      CheckMetadata(rows.reader_, "sequence", absl::StrCat(rows.sequence_tokens())));
  if (rows.num_rows() < 1 || rows.sequence_tokens() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", rows.num_rows(), " rows of ", rows.sequence_tokens(),
                     " tokens; at least one row of two tokens is needed to learn from"));
  }
  return rows;
}

absl::StatusOr<std::string> TokenRows::Metadata(const std::string& key) const {
  const std::string* const value = FindMetadata(reader_, key);
  if (value != nullptr) return *value;
  return WrongMetadata(reader_, key, value, "a text");
}

absl::StatusOr<int64_t> TokenRows::Number(const std::string& key, int64_t least,
                                          int64_t most) const {
  const std::string* const value = FindMetadata(reader_, key);
  int64_t number = 0;
  const bool is_number = value != nullptr && absl::SimpleAtoi(*value, &number);
  if (is_number && number >= least && number <= most) return number;
  return WrongMetadata(reader_, key, value, absl::StrCat(least, " to ", most));
}

absl::StatusOr<SafetensorsTensor> TokenRows::Find(absl::string_view name, SafetensorsDtype dtype,
                                                  const std::vector<int64_t>& shape) const {
  const SafetensorsTensor* const tensor = reader_.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": has no tensor ", name));
  }
  if (tensor->dtype == dtype && tensor->shape == shape) return *tensor;
  return absl::InvalidArgumentError(
      absl::StrCat(path(), ": tensor ", name, " is ", SafetensorsDtypeName(tensor->dtype), " [",
                   absl::StrJoin(tensor->shape, ", "), "], expected ", SafetensorsDtypeName(dtype),
                   " [", absl::StrJoin(shape, ", "), "]"));
}

absl::Status TokenRows::CheckIndex(int64_t row) const {
  if (row >= 0 && row < num_rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path(), ": no row ", row, " of ", num_rows()));
}

absl::StatusOr<std::vector<int32_t>> TokenRows::Read(int64_t row) const {
  GEMINI_RETURN_IF_ERROR(CheckIndex(row));
  std::vector<int32_t> tokens(static_cast<size_t>(sequence_tokens()));
  GEMINI_RETURN_IF_ERROR(
      ReadElements(reader_, tokens_, row * sequence_tokens(), absl::MakeSpan(tokens)));
  if (vocab_size_ > 0) GEMINI_RETURN_IF_ERROR(CheckTokens(row, tokens, vocab_size_));
  return tokens;
}

absl::StatusOr<std::vector<int64_t>> TokenRows::ReadDocuments(int64_t row) const {
  GEMINI_RETURN_IF_ERROR(CheckIndex(row));
  std::vector<int32_t> numbers(static_cast<size_t>(sequence_tokens()));
  GEMINI_RETURN_IF_ERROR(
      ReadElements(reader_, documents_, row * sequence_tokens(), absl::MakeSpan(numbers)));
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
          ReadElements(reader_, *tensor, first * length, absl::MakeSpan(*values)));
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

absl::StatusOr<TokenFingerprint> TokenRows::Fingerprint() const {
  const SafetensorsTensor& last = reader_.tensors().back();
  TokenFingerprint fingerprint = {.num_tokens = tokens_.num_elements,
                                  .file_bytes = last.offset_bytes + last.size_bytes};
  std::vector<std::byte> ends;
  // The metadata say what labels mean, and what is hidden.
  for (const auto& [key, value] : reader_.metadata()) {
    const std::string text = absl::StrCat(key, "=", value, "\n");
    const auto bytes = std::as_bytes(std::span(text));
    ends.insert(ends.end(), bytes.begin(), bytes.end());
  }
  for (const SafetensorsTensor& tensor : reader_.tensors()) {
    const int64_t size_bytes = std::min(tensor.size_bytes, kMiB);
    for (const int64_t first_byte : {int64_t{0}, tensor.size_bytes - size_bytes}) {
      ends.resize(ends.size() + static_cast<size_t>(size_bytes));
      GEMINI_RETURN_IF_ERROR(reader_.ReadRaw(
          tensor, first_byte, absl::MakeSpan(ends).last(static_cast<size_t>(size_bytes))));
    }
  }
  fingerprint.ends_crc32c = Crc32c(ends);
  return fingerprint;
}

}  // namespace gemini::trainer
