// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/example_data.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gemini/byte_size.h"
#include "gemini/crc32c.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr char kFormat[] = "1";
constexpr char kTask[] = "causal";
constexpr char kLayout[] = "layout";
constexpr char kPacked[] = "pack";
// Tokens that are checked at one time: large enough for the disk, small enough for the cache.
constexpr int64_t kPieceTokens = 128 * 1024;

// Refuses the file unless its metadata have that value.
absl::Status CheckMetadata(const SafetensorsReader& reader, const std::string& key,
                           absl::string_view expected) {
  const auto found = reader.metadata().find(key);
  if (found != reader.metadata().end() && found->second == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      reader.path(), ": its ", key, " is ",
      found == reader.metadata().end() ? "missing" : PrintableName(found->second), ", expected '",
      expected, "': prepare the data by the tools/prepare_data.py of this version"));
}

absl::StatusOr<SafetensorsTensor> FindTensor(const SafetensorsReader& reader,
                                             absl::string_view name, SafetensorsDtype dtype) {
  const SafetensorsTensor* const tensor = reader.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(reader.path(), ": has no tensor ", name));
  }
  if (tensor->dtype != dtype || tensor->shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.path(), ": tensor ", name, " is ", SafetensorsDtypeName(tensor->dtype),
                     " [", absl::StrJoin(tensor->shape, ", "), "], expected ",
                     SafetensorsDtypeName(dtype), " [rows, tokens]"));
  }
  return *tensor;
}

// Reads elements [first, first + values.size()) of a tensor.
template <typename T>
absl::Status ReadElements(const SafetensorsReader& reader, const SafetensorsTensor& tensor,
                          int64_t first, absl::Span<T> values) {
  return reader.ReadRaw(
      tensor, first * static_cast<int64_t>(sizeof(T)),
      absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)));
}

}  // namespace

absl::StatusOr<ExampleData> ExampleData::Open(const std::string& path) {
  GEMINI_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
  GEMINI_RETURN_IF_ERROR(CheckMetadata(reader, "gemini.format", kFormat));
  GEMINI_RETURN_IF_ERROR(CheckMetadata(reader, "task", kTask));
  const auto layout = reader.metadata().find(kLayout);
  const bool has_documents = layout != reader.metadata().end() && layout->second == kPacked;
  if (!has_documents) GEMINI_RETURN_IF_ERROR(CheckMetadata(reader, kLayout, "pad"));
  ExampleData data(std::move(reader));
  data.has_documents_ = has_documents;
  GEMINI_ASSIGN_OR_RETURN(data.tokens_, FindTensor(data.reader_, "tokens", SafetensorsDtype::kI32));
  for (const auto& [name, dtype, tensor] :
       {std::tuple("answers", SafetensorsDtype::kU8, &data.answers_),
        std::tuple("documents", SafetensorsDtype::kI32, &data.documents_)}) {
    GEMINI_ASSIGN_OR_RETURN(*tensor, FindTensor(data.reader_, name, dtype));
    if (tensor->shape != data.tokens_.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", name, " is [", absl::StrJoin(tensor->shape, ", "),
                       "], and tensor tokens is [", absl::StrJoin(data.tokens_.shape, ", "), "]"));
    }
  }
  GEMINI_RETURN_IF_ERROR(CheckMetadata(data.reader_, "rows", absl::StrCat(data.num_sequences())));
  GEMINI_RETURN_IF_ERROR(
      CheckMetadata(data.reader_, "sequence", absl::StrCat(data.sequence_tokens())));
  if (data.num_sequences() < 1 || data.sequence_tokens() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", data.num_sequences(), " rows of ", data.sequence_tokens(),
                     " tokens; at least one row of two tokens is needed to learn from"));
  }
  return data;
}

absl::Status ExampleData::CheckIndex(int64_t index) const {
  if (index >= 0 && index < num_sequences()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(reader_.path(), ": no row ", index, " of ", num_sequences()));
}

absl::Status ExampleData::Read(int64_t index, absl::Span<int64_t> tokens,
                               absl::Span<int64_t> labels) const {
  GEMINI_RETURN_IF_ERROR(CheckIndex(index));
  const auto length = static_cast<size_t>(sequence_tokens());
  if (tokens.size() != length || labels.size() != length) {
    return absl::InvalidArgumentError(absl::StrCat(reader_.path(), ": room for ", tokens.size(),
                                                   " tokens and ", labels.size(),
                                                   " labels, a row has ", length));
  }
  std::vector<int32_t> values(length);
  std::vector<uint8_t> answers(length);
  GEMINI_RETURN_IF_ERROR(
      ReadElements(reader_, tokens_, index * sequence_tokens(), absl::MakeSpan(values)));
  GEMINI_RETURN_IF_ERROR(
      ReadElements(reader_, answers_, index * sequence_tokens(), absl::MakeSpan(answers)));
  // The file may have been written to since it was checked.
  GEMINI_ASSIGN_OR_RETURN(const int64_t num_answers, CountIn(index, answers));
  if (!num_answers_.empty()) {
    const int64_t before = num_answers_[static_cast<size_t>(index)];
    if (num_answers != before) {
      return absl::InvalidArgumentError(
          absl::StrCat(reader_.path(), ": row ", index, " has ", num_answers, " answers and had ",
                       before, " when it was opened: leave the file alone while a run reads it"));
    }
    GEMINI_RETURN_IF_ERROR(CheckTokens(index, values, vocab_size_));
  }
  for (size_t i = 0; i < length; ++i) {
    tokens[i] = values[i];
    labels[i] = answers[i] != 0 ? values[i] : -1;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ExampleData::ReadDocuments(int64_t index) const {
  GEMINI_RETURN_IF_ERROR(CheckIndex(index));
  std::vector<int32_t> numbers(static_cast<size_t>(sequence_tokens()));
  GEMINI_RETURN_IF_ERROR(
      ReadElements(reader_, documents_, index * sequence_tokens(), absl::MakeSpan(numbers)));
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < numbers.size() && numbers[i] != 0; ++i) {
    if (i == 0 || numbers[i] != numbers[i - 1]) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

absl::StatusOr<int64_t> ExampleData::CountAnswers(int64_t index) const {
  GEMINI_RETURN_IF_ERROR(CheckIndex(index));
  if (num_answers_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(reader_.path(), ": rows were not checked"));
  }
  return num_answers_[static_cast<size_t>(index)];
}

absl::StatusOr<TokenFingerprint> ExampleData::Fingerprint() const {
  const SafetensorsTensor& last = reader_.tensors().back();
  TokenFingerprint fingerprint = {.num_tokens = tokens_.num_elements,
                                  .file_bytes = last.offset_bytes + last.size_bytes};
  std::vector<std::byte> ends;
  for (const SafetensorsTensor* tensor : {&tokens_, &answers_, &documents_}) {
    const int64_t size_bytes = std::min(tensor->size_bytes, kMiB);
    for (const int64_t first_byte : {int64_t{0}, tensor->size_bytes - size_bytes}) {
      ends.resize(ends.size() + static_cast<size_t>(size_bytes));
      GEMINI_RETURN_IF_ERROR(reader_.ReadRaw(
          *tensor, first_byte, absl::MakeSpan(ends).last(static_cast<size_t>(size_bytes))));
    }
  }
  fingerprint.ends_crc32c = Crc32c(ends);
  return fingerprint;
}

absl::StatusOr<int64_t> ExampleData::CountIn(int64_t row, absl::Span<const uint8_t> answers) const {
  int64_t count = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] > 1 || (i == 0 && answers[i] != 0)) {
      const int64_t element = row * sequence_tokens() + static_cast<int64_t>(i);
      return absl::InvalidArgumentError(absl::StrCat(
          reader_.path(), ": answers has ", answers[i], " at byte ",
          answers_.offset_bytes + element, ", row ", row, ", position ", i, ", expected 0",
          i == 0 ? ", for nothing comes before the first token" : " or 1",
          ": prepare the data again"));
    }
    count += answers[i];
  }
  if (count > 0) return count;
  return absl::InvalidArgumentError(
      absl::StrCat(reader_.path(), ": row ", row, " has no answer among its ", answers.size(),
                   " tokens, so there is nothing to learn from it: leave it out"));
}

absl::Status ExampleData::CheckTokens(int64_t row, absl::Span<const int32_t> tokens,
                                      int64_t vocab_size) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(reader_.path(), ": token ", tokens[i], " in row ", row, ", position ", i,
                     ", is not in the model's vocabulary of ", vocab_size,
                     ": prepare the data with the tokenizer of this model"));
  }
  return absl::OkStatus();
}

absl::Status ExampleData::CheckDocuments(int64_t row, absl::Span<const int32_t> documents,
                                         absl::Span<const uint8_t> answers,
                                         bool takes_padding) const {
  for (size_t i = 0; i < documents.size(); ++i) {
    const int32_t before = i == 0 ? 1 : documents[i - 1];
    const bool begins = documents[i] != before;
    const bool is_next = has_documents_ && i > 0 && before > 0 && documents[i] == before + 1;
    if (is_next && answers[i] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(reader_.path(), ": row ", row, " has an answer at position ", i,
                       ", where document ", documents[i], " begins: prepare the data again"));
    }
    if (begins && !is_next && (i == 0 || documents[i] != 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          reader_.path(), ": row ", row, " has document ", documents[i], " at position ", i,
          i == 0 ? std::string(", expected 1") : absl::StrCat(", behind document ", before),
          ": prepare the data again"));
    }
    if (begins && !is_next && !takes_padding) {
      return absl::UnimplementedError(absl::StrCat(
          reader_.path(), ": row ", row, " ends in ", documents.size() - i,
          " tokens of padding, which the loss of this model's routers would count: set ",
          "output_router_logits to false in its config.json"));
    }
    if (documents[i] == 0 && answers[i] != 0) {
      return absl::InvalidArgumentError(absl::StrCat(reader_.path(), ": row ", row,
                                                     " has padding at position ", i,
                                                     " that is an answer: prepare the data again"));
    }
  }
  return absl::OkStatus();
}

absl::Status ExampleData::CheckRows(int64_t vocab_size, bool takes_padding) {
  const int64_t length = sequence_tokens();
  const int64_t most_rows = std::min(num_sequences(), std::max<int64_t>(kPieceTokens / length, 1));
  std::vector<int32_t> tokens(static_cast<size_t>(most_rows * length)), documents(tokens.size());
  std::vector<uint8_t> answers(tokens.size());
  std::vector<int32_t> num_answers;
  for (int64_t first = 0; first < num_sequences(); first += most_rows) {
    const int64_t num_rows = std::min(most_rows, num_sequences() - first);
    const auto count = static_cast<size_t>(num_rows * length);
    GEMINI_RETURN_IF_ERROR(
        ReadElements(reader_, tokens_, first * length, absl::MakeSpan(tokens).first(count)));
    GEMINI_RETURN_IF_ERROR(
        ReadElements(reader_, documents_, first * length, absl::MakeSpan(documents).first(count)));
    GEMINI_RETURN_IF_ERROR(
        ReadElements(reader_, answers_, first * length, absl::MakeSpan(answers).first(count)));
    for (int64_t i = 0; i < num_rows; ++i) {
      const auto of_row = [&](const auto& piece) {
        return absl::MakeConstSpan(piece).subspan(static_cast<size_t>(i * length),
                                                  static_cast<size_t>(length));
      };
      GEMINI_RETURN_IF_ERROR(CheckTokens(first + i, of_row(tokens), vocab_size));
      GEMINI_ASSIGN_OR_RETURN(const int64_t count_of_row, CountIn(first + i, of_row(answers)));
      num_answers.push_back(static_cast<int32_t>(count_of_row));
      GEMINI_RETURN_IF_ERROR(
          CheckDocuments(first + i, of_row(documents), of_row(answers), takes_padding));
    }
  }
  num_answers_ = std::move(num_answers);
  vocab_size_ = vocab_size;
  return absl::OkStatus();
}

}  // namespace gemini::trainer
