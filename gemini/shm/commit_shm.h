// SPDX-License-Identifier: Apache-2.0
// Defines the commit word and record of a bundle, which say which of its versions is valid and
// where it lies.
// Writer: the space's client, in this order: data complete (and its events), record complete, then
// the word with release order. A record must not be rewritten while any word names it. While the
// intent names it, it must not be rewritten either if its bundle's word is below the intent's step
// (gemini/shm/intent_shm.h).
// Reader: memstat, and the server when the client has died. They acquire the word once, validate
// it, read the record that it names and validate each slot.
// Move: a committed chunk that changes its slot gets a new record, then the word with the same
// step.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "gemini/chunk_kind.h"
#include "gemini/ids.h"
#include "gemini/tier.h"

namespace gemini {

inline constexpr int kCommitStepBits = 40;
inline constexpr int kCommitRecordBits = 24;

// The 64-bit word {step:40, record:24}. It is 0 before the first commit. The record field holds the
// record's index + 1, so that no committed word is 0.
struct CommitWord {
  int64_t step = 0;    // Below 2^40; 0 as loaded, before any update.
  int64_t record = 0;  // Index in the record table; below 2^24 - 1.
  bool operator==(const CommitWord&) const = default;
};
uint64_t PackCommitWord(const CommitWord& word);
// NOT_FOUND: the word is 0. INVALID_ARGUMENT: the record is at or past num_records.
absl::StatusOr<CommitWord> UnpackCommitWord(uint64_t word, int64_t num_records);
// Returns no value instead of an error and allocates nothing, for readers of many words of a peer.
std::optional<CommitWord> TryUnpackCommitWord(uint64_t word, int64_t num_records);

// There are 2 records for each bundle and kSpareRecords more, because a bundle needs two during a
// commit.
inline constexpr int64_t kSpareRecords = 64;
constexpr int64_t NumCommitRecords(int64_t num_bundles) { return 2 * num_bundles + kSpareRecords; }

// Where one chunk of a version lies. It is on DEVICE, in a slot of the session's arena, only if the
// version was made there and is not written back yet. Other DEVICE copies are caches or not
// committed.
struct ChunkSlot {
  Tier tier = Tier::kHost;
  SlotId slot;
  bool operator==(const ChunkSlot&) const = default;
};
// One word for each kind. It is 0 if the version has no chunk of this kind; moments then read as
// zero. Bits: tier + 1 in the low 2 (1 DEVICE, 2 HOST, 3 NVME), the slot above.
using CommitRecord = std::array<uint64_t, kNumChunkKinds>;
uint64_t PackChunkSlot(const ChunkSlot& slot);
// INVALID_ARGUMENT: no such tier, or a slot past slots[tier]. NOT_FOUND: the word is 0.
absl::StatusOr<ChunkSlot> UnpackChunkSlot(uint64_t word, const TierMap<int64_t>& slots);
std::optional<ChunkSlot> TryUnpackChunkSlot(uint64_t word, const TierMap<int64_t>& slots);

}  // namespace gemini
