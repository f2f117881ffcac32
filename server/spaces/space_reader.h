// SPDX-License-Identifier: Apache-2.0
// Reads a client segment with no trust: every 64-bit word is copied once, then validated.
// Thread: any; the client may write at the same time. O(chunks) except List.
// Errors: none. A word that no honest client writes is counted as invalid.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gemini/ids.h"
#include "gemini/shm/residency_shm.h"
#include "gemini/shm/space_shm.h"
#include "gemini/stall_cause.h"
#include "gemini/tier.h"

namespace gemini::server {

struct CommitSummary {
  int64_t committed = 0;  // Bundles whose word and record are valid.
  int64_t invalid = 0;    // Bundles whose word or record is not.
  int64_t min_step = -1;  // Over the committed ones; -1: none.
  int64_t max_step = -1;
  bool operator==(const CommitSummary&) const = default;
};

struct SpaceCounts {
  int64_t chunks_free = 0;
  TierMap<int64_t> chunks_hold;
  int64_t chunks_compute = 0;
  int64_t chunks_invalid = 0;
  // The header's words as the client states them; above 2^63 - 1 shows as that.
  int64_t step = 0;
  int64_t fetch_bytes = 0;
  int64_t evict_bytes = 0;
  int64_t stall_ns = 0;
  int64_t device_used_bytes = 0;
  int64_t device_non_model_bytes = 0;
  std::array<int64_t, kNumStallCauses> stall_by_cause_ns = {};  // By StallCause.
  std::array<int64_t, kNumDivergences> divergences = {};        // By Divergence.
  int64_t rounds = 0;
  int64_t planned_rounds = 0;
  int64_t update_pending = 0;
  int64_t damaged_chunks = 0;
  ChunkId last_damaged;  // None, too, where the client names no chunk of the space.
  int64_t failed_nvme_writes = 0;
  // Of the session's last step, in its first space (gemini/shm/space_shm.h).
  int64_t step_ns = 0;
  int64_t step_stall_ns = 0;
  int64_t step_fetch_bytes = 0;
  int64_t step_evict_bytes = 0;
  CommitSummary commits;
  bool operator==(const SpaceCounts&) const = default;
};

struct ListedChunk {
  ChunkId chunk;
  ChunkResidency residency;  // FREE where invalid.
  int64_t commit_step = -1;  // Of its bundle; -1: nothing committed, or invalid.
  bool invalid = false;
};

class SpaceReader {
 public:
  // `segment` is a mapped client segment of `num_bundles` and `num_tensors`; it outlives the
  // reader. `slots` bounds what words may name.
  SpaceReader(const std::byte* segment, int64_t num_bundles, int64_t num_tensors,
              const TierMap<int64_t>& slots)
      : segment_(segment),
        layout_(num_bundles, num_tensors),
        num_bundles_(num_bundles),
        slots_(slots) {}

  CommitSummary ReadCommits() const;
  SpaceCounts Count() const;
  // What Count returns before the client has written anything, without its cost.
  SpaceCounts CountUntouched() const;
  // As in Count, without its cost.
  int64_t DeviceNonModelBytes() const;
  // Chunks [first, first + count) as far as they exist; first and count are >= 0.
  std::vector<ListedChunk> List(int64_t first, int64_t count) const;

 private:
  const ClientSegmentHeaderShm& header() const;
  // The step of the bundle's valid version; -1: none. Sets `invalid` where a word or record lies.
  int64_t CommittedStep(BundleId bundle, bool& invalid) const;
  uint64_t WordAt(int64_t offset_bytes, std::memory_order order) const;

  const std::byte* const segment_;
  const ClientSegmentLayout layout_;
  const int64_t num_bundles_;
  const TierMap<int64_t> slots_;
};

}  // namespace gemini::server
