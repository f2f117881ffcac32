// SPDX-License-Identifier: Apache-2.0
// Reads tokens on disk: a one-dimensional .npy of uint16 or uint32, cut into sequences of equal
// length. Sequence n is tokens [n * S, (n + 1) * S); tokens after the last whole sequence are not
// used.
// Blocks: on the disk. Only requested sequences are read. Nothing is mapped, so that a file
// truncated while in use is an error and not a fault.
// Owner: any thread; an open file may be shared.
// Errors: INVALID_ARGUMENT: not such a file; the message says what it is. DATA_LOSS: it ends before
// the elements that its header promises. NOT_FOUND and others: as open(2).
// Source: the NPY format, versions 1.0 to 3.0 (numpy.lib.format).
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/system/unique_fd.h"
#include "trainer/data/token_fingerprint.h"

namespace gemini::trainer {

// What the header of an .npy says. `where` names the file in messages.
struct NpyHeader {
  int64_t data_offset_bytes = 0;
  int64_t num_elements = 0;
  int64_t element_bytes = 0;  // 2 or 4, unsigned, little-endian.
  bool operator==(const NpyHeader&) const = default;
};
// `head` is the file's beginning: the whole header, or kMaxNpyHeaderBytes of it.
inline constexpr int64_t kMaxNpyHeaderBytes = 64 * 1024;
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view head, absl::string_view where);

class TokenData {
 public:
  // Opens the file for sequences of `sequence_tokens` (> 0). INVALID_ARGUMENT also if it holds less
  // than one sequence.
  static absl::StatusOr<TokenData> Open(const std::string& path, int64_t sequence_tokens);

  int64_t num_tokens() const { return header_.num_elements; }
  int64_t num_sequences() const { return header_.num_elements / sequence_tokens_; }
  int64_t sequence_tokens() const { return sequence_tokens_; }

  // Reads sequence `index` (0 to num_sequences - 1) into `tokens`, of sequence_tokens elements.
  absl::Status Read(int64_t index, absl::Span<int64_t> tokens) const;

  // Returns what the file is now. Reads its ends.
  absl::StatusOr<TokenFingerprint> Fingerprint() const;

  // Reads every token that a sequence uses. INVALID_ARGUMENT: one is not below `vocab_size`; names
  // the position and the value.
  absl::Status CheckVocabulary(int64_t vocab_size) const;

 private:
  TokenData() = default;
  absl::Status ReadRange(int64_t first, absl::Span<int64_t> tokens) const;

  std::string path_;
  UniqueFd fd_;
  NpyHeader header_;
  int64_t sequence_tokens_ = 1;
};

}  // namespace gemini::trainer
