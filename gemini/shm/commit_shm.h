// SPDX-License-Identifier: Apache-2.0
// The commit word and record: which version of a bundle is valid, and where.
// Writer: the space's client, in this order: data complete (and its events), record complete, then
//         the word with release order. A record is not rewritten while any word names it, nor while
//         the intent does for a bundle whose word is below the intent's step
//         (gemini/shm/intent_shm.h).
// Reader: the server when the client has died, and memstat: acquire the word once, validate it,
//         read the record it names, validate each slot.
// Move:   a committed chunk that changes its slot gets a new record, then the word with the same
//         step.
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

// The 64-bit word {step:40, record:24}; 0 means that nothing was ever committed. A stored record
// field is the record's index + 1, so that no committed word is 0.
struct CommitWord {
  int64_t step = 0;    // Below 2^40. 0: as loaded, before any update.
  int64_t record = 0;  // Index in the record table; below 2^24 - 1.
  bool operator==(const CommitWord&) const = default;
};
uint64_t PackCommitWord(const CommitWord& word);
// NOT_FOUND: 0, nothing committed. INVALID_ARGUMENT: a record at or past num_records.
absl::StatusOr<CommitWord> UnpackCommitWord(uint64_t word, int64_t num_records);
// Nothing instead of an error, and no allocation: for whoever reads many words of a peer.
std::optional<CommitWord> TryUnpackCommitWord(uint64_t word, int64_t num_records);

// There are 2 records a bundle and kSpareRecords more: a bundle in the middle of a commit holds
// two.
inline constexpr int64_t kSpareRecords = 64;
constexpr int64_t NumCommitRecords(int64_t num_bundles) { return 2 * num_bundles + kSpareRecords; }

// Where one chunk of a version lies. On DEVICE only where the version was made there and is not
// written back yet: a slot of the session's arena. Other DEVICE copies are caches or not committed.
struct ChunkSlot {
  Tier tier = Tier::kHost;
  SlotId slot;
  bool operator==(const ChunkSlot&) const = default;
};
// One word a kind; 0: this kind is not part of the version (no payload; moments read as zero).
// Bits: tier + 1 in the low 2 (1 DEVICE, 2 HOST, 3 NVME), the slot above.
using CommitRecord = std::array<uint64_t, kNumChunkKinds>;
uint64_t PackChunkSlot(const ChunkSlot& slot);
// INVALID_ARGUMENT: no such tier, or a slot past slots[tier]. NOT_FOUND: 0.
absl::StatusOr<ChunkSlot> UnpackChunkSlot(uint64_t word, const TierMap<int64_t>& slots);
std::optional<ChunkSlot> TryUnpackChunkSlot(uint64_t word, const TierMap<int64_t>& slots);

}  // namespace gemini
