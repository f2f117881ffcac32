// SPDX-License-Identifier: Apache-2.0
// Encodes how something went on a rank, for the other ranks: bytes of one size, as collectives need
// them.
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gemini::trainer {

class RankVerdict {
 public:
  RankVerdict() = default;  // OK.
  // A message that is too long is cut.
  explicit RankVerdict(const absl::Status& status);

  bool ok() const { return code_ == 0; }
  // Whatever the bytes hold, as they may come from another rank.
  absl::Status ToStatus() const;

 private:
  int32_t code_ = 0;  // An absl::StatusCode.
  int32_t text_size_ = 0;
  std::array<char, 496> text_ = {};
};
static_assert(std::is_trivially_copyable_v<RankVerdict>);

// Returns OK if all ranks say so; else what the first rank says that fails, with its number, or one
// whose code is not OUT_OF_RANGE before those. What all of them say alike needs no number.
absl::Status WorstOf(absl::Span<const RankVerdict> by_rank);

// An error that all ranks got alike: each of them ends in order, and one may tell it.
absl::Status MarkAsAgreed(absl::Status status);
bool IsAgreed(const absl::Status& status);

}  // namespace gemini::trainer
