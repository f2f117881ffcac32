// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/commit_shm.h"

#include "absl/strings/str_cat.h"

namespace gemini {

uint64_t PackCommitWord(const CommitWord& word) {
  return static_cast<uint64_t>(word.step) << kCommitRecordBits |
         (static_cast<uint64_t>(word.record) + 1);
}

std::optional<CommitWord> TryUnpackCommitWord(uint64_t word, int64_t num_records) {
  const int64_t field = static_cast<int64_t>(word & ((uint64_t{1} << kCommitRecordBits) - 1));
  if (field == 0 || field > num_records) return std::nullopt;
  return CommitWord{.step = static_cast<int64_t>(word >> kCommitRecordBits), .record = field - 1};
}

absl::StatusOr<CommitWord> UnpackCommitWord(uint64_t word, int64_t num_records) {
  if (word == 0) return absl::NotFoundError("nothing was committed");
  const std::optional<CommitWord> commit = TryUnpackCommitWord(word, num_records);
  if (commit.has_value()) return *commit;
  const int64_t field = static_cast<int64_t>(word & ((uint64_t{1} << kCommitRecordBits) - 1));
  return absl::InvalidArgumentError(
      absl::StrCat("a commit word names record ", field - 1, " of ", num_records));
}

uint64_t PackChunkSlot(const ChunkSlot& slot) {
  return (static_cast<uint64_t>(slot.tier) + 1) | static_cast<uint64_t>(slot.slot.value()) << 2;
}

std::optional<ChunkSlot> TryUnpackChunkSlot(uint64_t word, const TierMap<int64_t>& slots) {
  const uint64_t tier = word & 3;
  const uint64_t slot = word >> 2;
  if (tier == 0) return std::nullopt;
  const Tier where = static_cast<Tier>(tier - 1);
  if (slot >= static_cast<uint64_t>(slots[where])) return std::nullopt;
  return ChunkSlot{.tier = where, .slot = SlotId(static_cast<int64_t>(slot))};
}

absl::StatusOr<ChunkSlot> UnpackChunkSlot(uint64_t word, const TierMap<int64_t>& slots) {
  if (word == 0) return absl::NotFoundError("no payload");
  const std::optional<ChunkSlot> slot = TryUnpackChunkSlot(word, slots);
  if (slot.has_value()) return *slot;
  if ((word & 3) == 0) return absl::InvalidArgumentError("a record names a chunk in no tier");
  const Tier where = static_cast<Tier>((word & 3) - 1);
  return absl::InvalidArgumentError(
      absl::StrCat("a record names ", TierName(where), " slot ", word >> 2, " of ", slots[where]));
}

}  // namespace gemini
