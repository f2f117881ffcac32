// SPDX-License-Identifier: Apache-2.0
#include "gemini/commit_shm.h"

#include "absl/strings/str_cat.h"

namespace gemini {

uint64_t PackCommitWord(const CommitWord& word) {
  return static_cast<uint64_t>(word.step) << kCommitRecordBits |
         (static_cast<uint64_t>(word.record) + 1);
}

absl::StatusOr<CommitWord> UnpackCommitWord(uint64_t word, int64_t num_records) {
  if (word == 0) return absl::NotFoundError("nothing was committed");
  const int64_t field = static_cast<int64_t>(word & ((uint64_t{1} << kCommitRecordBits) - 1));
  if (field == 0 || field > num_records) {
    return absl::InvalidArgumentError(
        absl::StrCat("a commit word names record ", field - 1, " of ", num_records));
  }
  return CommitWord{.step = static_cast<int64_t>(word >> kCommitRecordBits), .record = field - 1};
}

uint64_t PackChunkSlot(const ChunkSlot& slot) {
  return (static_cast<uint64_t>(slot.tier) + 1) | static_cast<uint64_t>(slot.slot.value()) << 2;
}

absl::StatusOr<ChunkSlot> UnpackChunkSlot(uint64_t word, const TierMap<int64_t>& slots) {
  if (word == 0) return absl::NotFoundError("no payload");
  const uint64_t tier = word & 3;
  const uint64_t slot = word >> 2;
  if (tier < 2) return absl::InvalidArgumentError("a record names a chunk off HOST and NVME");
  const Tier where = static_cast<Tier>(tier - 1);
  if (slot >= static_cast<uint64_t>(slots[where])) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record names ", TierName(where), " slot ", slot, " of ", slots[where]));
  }
  return ChunkSlot{.tier = where, .slot = SlotId(static_cast<int64_t>(slot))};
}

}  // namespace gemini
