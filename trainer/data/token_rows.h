// SPDX-License-Identifier: Apache-2.0
// Reads the rows of tokens that are in every file that tools/prepare_data.py makes of examples:
//     tokens     I32 [rows, S]
//     documents  I32 [rows, S]  the number of the token's document in its row, from 1 on; 0 is
//                               padding, which there is at a row's end only
// The metadata have both sizes ("rows", "sequence"), and say whether a row may have several
// documents ("layout": "pack", or "pad"). Rows, and positions in them, are counted from 0.
// Blocks, Owner, Errors: as of RowFile.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/files/safetensors_format.h"
#include "trainer/data/row_file.h"
#include "trainer/data/token_fingerprint.h"

namespace gemini::trainer {

class TokenRows : public RowFile {
 public:
  // Takes an open file and checks the rest of its header.
  static absl::StatusOr<TokenRows> Open(RowFile file);

  int64_t num_rows() const { return tokens_.shape[0]; }
  int64_t sequence_tokens() const { return tokens_.shape[1]; }
  // Whether a row may have several documents.
  bool is_packed() const { return is_packed_; }

  // Returns a tensor with an element for each token.
  absl::StatusOr<SafetensorsTensor> FindLikeTokens(absl::string_view name,
                                                   SafetensorsDtype dtype) const {
    return Find(name, dtype, tokens_.shape);
  }

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

  absl::StatusOr<TokenFingerprint> Fingerprint() const {
    return FingerprintOf(tokens_.num_elements);
  }

 private:
  explicit TokenRows(RowFile file) : RowFile(std::move(file)) {}

  absl::Status CheckTokens(int64_t row, absl::Span<const int32_t> tokens, int64_t vocab_size) const;

  SafetensorsTensor tokens_, documents_;
  bool is_packed_ = false;
  int64_t vocab_size_ = 0;  // 0: tokens were not checked.
};

}  // namespace gemini::trainer
