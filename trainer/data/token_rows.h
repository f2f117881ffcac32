// SPDX-License-Identifier: Apache-2.0
// Rows of tokens, as all files have them that tools/prepare_data.py makes of examples:
//     tokens     I32 [rows, S]
//     documents  I32 [rows, S]  the number of the token's document in its row, from 1 on; 0 is
//                               padding, which there is at a row's end only
// It is a safetensors file, whose metadata name the format's version ("gemini.format"), the task,
// both sizes ("rows", "sequence"), and whether a row may have several documents ("layout": "pack",
// or "pad"). Rows, and positions in them, are counted from 0.
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

#include "absl/functional/function_ref.h"
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

class TokenRows {
 public:
  // Opens the file and checks its header.
  static absl::StatusOr<TokenRows> Open(const std::string& path);

  const SafetensorsReader& reader() const { return reader_; }
  const std::string& path() const { return reader_.path(); }
  TaskKind task() const { return task_; }
  int64_t num_rows() const { return tokens_.shape[0]; }
  int64_t sequence_tokens() const { return tokens_.shape[1]; }
  // Whether a row may have several documents.
  bool is_packed() const { return is_packed_; }

  // Returns a text of the metadata. INVALID_ARGUMENT: there is none.
  absl::StatusOr<std::string> Metadata(const std::string& key) const;
  // Returns a whole number of the metadata, from `least` to `most`.
  absl::StatusOr<int64_t> Number(const std::string& key, int64_t least, int64_t most) const;
  // Returns a tensor of this type and shape.
  absl::StatusOr<SafetensorsTensor> Find(absl::string_view name, SafetensorsDtype dtype,
                                         const std::vector<int64_t>& shape) const;
  // Returns one with an element for each token.
  absl::StatusOr<SafetensorsTensor> FindLikeTokens(absl::string_view name,
                                                   SafetensorsDtype dtype) const {
    return Find(name, dtype, tokens_.shape);
  }

  absl::Status CheckIndex(int64_t row) const;
  // Returns a row's tokens. They are checked again: the file may have been written to.
  absl::StatusOr<std::vector<int32_t>> Read(int64_t row) const;
  // Returns how many tokens each document of a row has, in their order.
  absl::StatusOr<std::vector<int64_t>> ReadDocuments(int64_t row) const;

  // Rows that lie in memory together: tokens and documents [num_rows, sequence_tokens].
  struct Piece {
    int64_t first_row = 0;
    int64_t num_rows = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> documents;
  };
  // Calls `visit` with all rows, piece by piece, until it returns an error. INVALID_ARGUMENT: a
  // token is not from 0 to `vocab_size` - 1. From then on Read holds tokens against that, too.
  absl::Status ForEachPiece(int64_t vocab_size,
                            absl::FunctionRef<absl::Status(const Piece&)> visit);

  // Returns what the file is now, its metadata among it. Reads the ends of its tensors.
  absl::StatusOr<TokenFingerprint> Fingerprint() const;

 private:
  explicit TokenRows(SafetensorsReader reader) : reader_(std::move(reader)) {}

  absl::Status CheckTokens(int64_t row, absl::Span<const int32_t> tokens, int64_t vocab_size) const;

  SafetensorsReader reader_;
  SafetensorsTensor tokens_, documents_;
  TaskKind task_ = TaskKind::kCausal;
  bool is_packed_ = false;
  int64_t vocab_size_ = 0;  // 0: tokens were not checked.
};

}  // namespace gemini::trainer
