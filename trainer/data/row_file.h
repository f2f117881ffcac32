// SPDX-License-Identifier: Apache-2.0
// Opens a file of rows that a run learns from, as tools/prepare_data.py makes it: a safetensors
// file, whose metadata name the format's version ("gemini.format") and the task, and say what the
// tensors mean. Each tensor has its rows along the first dimension.
// Blocks: on the disk. Only requested rows are read. Nothing is mapped, so that a file truncated
//         while in use is an error and not a fault.
// Owner:  any thread; an open file may be shared.
// Errors: INVALID_ARGUMENT: not such a file, or its content is wrong. DATA_LOSS: it ends before the
//         bytes that its header promises. NOT_FOUND and others: as open(2). All name the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/files/safetensors_format.h"
#include "trainer/data/token_fingerprint.h"
#include "trainer/families/task_spec.h"

namespace gemini::trainer {

// Reads elements [first, first + values.size()) of a tensor.
template <typename T>
absl::Status ReadElements(const SafetensorsReader& reader, const SafetensorsTensor& tensor,
                          int64_t first, absl::Span<T> values) {
  return reader.ReadRaw(
      tensor, first * static_cast<int64_t>(sizeof(T)),
      absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)));
}

class RowFile {
 public:
  // Opens the file and checks its format and its task.
  static absl::StatusOr<RowFile> Open(const std::string& path);

  const SafetensorsReader& reader() const { return reader_; }
  const std::string& path() const { return reader_.path(); }
  TaskKind task() const { return task_; }

  // Returns a text of the metadata. INVALID_ARGUMENT: there is none.
  absl::StatusOr<std::string> Metadata(const std::string& key) const;
  // Returns a whole number of the metadata, from `least` to `most`.
  absl::StatusOr<int64_t> Number(const std::string& key, int64_t least, int64_t most) const;
  // Refuses the file unless its metadata have that text.
  absl::Status CheckMetadata(const std::string& key, absl::string_view expected) const;
  // Returns the error for a text of the metadata that is not what was expected, or is missing.
  absl::Status WrongMetadata(const std::string& key, absl::string_view expected) const;
  // Returns a tensor of this type and shape.
  absl::StatusOr<SafetensorsTensor> Find(absl::string_view name, SafetensorsDtype dtype,
                                         const std::vector<int64_t>& shape) const;
  // Refuses a row that is not one of the file's `num_rows`, which are counted from 0.
  absl::Status CheckIndex(int64_t row, int64_t num_rows) const;

  // Returns what the file is now, its metadata among it. Reads the ends of its tensors.
  // `num_tokens`: what it counts.
  absl::StatusOr<TokenFingerprint> FingerprintOf(int64_t num_tokens) const;

 private:
  explicit RowFile(SafetensorsReader reader) : reader_(std::move(reader)) {}

  SafetensorsReader reader_;
  TaskKind task_ = TaskKind::kCausal;
};

}  // namespace gemini::trainer
