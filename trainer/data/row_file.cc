// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/row_file.h"

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

// Returns null where the metadata have none.
const std::string* FindMetadata(const SafetensorsReader& reader, const std::string& key) {
  const auto found = reader.metadata().find(key);
  return found == reader.metadata().end() ? nullptr : &found->second;
}

}  // namespace

absl::StatusOr<RowFile> RowFile::Open(const std::string& path) {
  GEMINI_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
  RowFile file(std::move(reader));
  GEMINI_RETURN_IF_ERROR(file.CheckMetadata("gemini.format", kFormat));
  GEMINI_ASSIGN_OR_RETURN(const std::string task, file.Metadata("task"));
  const auto known = std::ranges::find(kTaskNames, absl::string_view(task));
  if (known == std::end(kTaskNames)) {
    return file.WrongMetadata("task", absl::StrJoin(kTaskNames, ", "));
  }
  file.task_ = static_cast<TaskKind>(known - std::begin(kTaskNames));
  return file;
}

absl::Status RowFile::WrongMetadata(const std::string& key, absl::string_view expected) const {
  const std::string* const value = FindMetadata(reader_, key);
  return absl::InvalidArgumentError(absl::StrCat(
      path(), ": its ", key, " is ", value == nullptr ? "missing" : PrintableName(*value),
      ", expected ", expected, ": prepare the data again, as docs/data.md says"));
}

absl::Status RowFile::CheckMetadata(const std::string& key, absl::string_view expected) const {
  const std::string* const value = FindMetadata(reader_, key);
  if (value != nullptr && *value == expected) return absl::OkStatus();
  return WrongMetadata(key, absl::StrCat("'", expected, "'"));
}

absl::StatusOr<std::string> RowFile::Metadata(const std::string& key) const {
  const std::string* const value = FindMetadata(reader_, key);
  if (value != nullptr) return *value;
  return WrongMetadata(key, "a text");
}

absl::StatusOr<int64_t> RowFile::Number(const std::string& key, int64_t least, int64_t most) const {
  const std::string* const value = FindMetadata(reader_, key);
  int64_t number = 0;
  const bool is_number = value != nullptr && absl::SimpleAtoi(*value, &number);
  if (is_number && number >= least && number <= most) return number;
  return WrongMetadata(key, absl::StrCat(least, " to ", most));
}

absl::StatusOr<SafetensorsTensor> RowFile::Find(absl::string_view name, SafetensorsDtype dtype,
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

absl::Status RowFile::CheckIndex(int64_t row, int64_t num_rows) const {
  if (row >= 0 && row < num_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path(), ": no row ", row, " of ", num_rows));
}

absl::StatusOr<TokenFingerprint> RowFile::FingerprintOf(int64_t num_tokens) const {
  const SafetensorsTensor& last = reader_.tensors().back();
  TokenFingerprint fingerprint = {.num_tokens = num_tokens,
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
