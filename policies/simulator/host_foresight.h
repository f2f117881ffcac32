// SPDX-License-Identifier: Apache-2.0
// Predicts when the chunks of one space are used next in HOST, by the uses that a plan lists. It
// decides what to evict when there is no room (the chunk used last), and what to read ahead from
// NVME. client/host/chunk_store.h and the simulator follow it.
// Ahead: missing chunks are read in the order of use, but no earlier than they must be, because
// reading early takes room from chunks that could otherwise stay. The i-th missing chunk from now
// on is there in time if there is time for i reads until its use. Once that is in doubt for any of
// them, the first is due.
// Clock: predicted uses are counted from the first use of the first round, round after round. The
// clock is behind the furthest use made so far. Uses happen nearly in the predicted order: several
// threads make them, each in its own order, so a reported use is taken for the nearest predicted
// one of its chunk. A use too far from the clock was not predicted, and changes nothing. A use that
// the clock has left far behind is taken for made.
// Source: Belady, "A study of replacement algorithms for a virtual-storage computer" (IBM Systems
// Journal 5(2), 1966); forestall, of Kimbrel et al., "A trace-driven comparison of algorithms for
// parallel prefetching and caching" (OSDI 1996).
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "gemini/ids.h"
#include "gemini/plan/plan.h"

namespace gemini::policies {

class HostForesight {
 public:
  static constexpr int64_t kNoUse = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kMostNs = int64_t{1} << 46;  // 20 hours.

  HostForesight() = default;  // Predicts nothing.
  // Takes the uses of `space` among `uses`, those of a round that takes `round_ns`, for chunks 0 to
  // num_chunks - 1; others are left out. To read a chunk takes `read_ns`. A peer may have made
  // them: if a time is negative or above kMostNs, nothing is predicted.
  HostForesight(absl::Span<const PlannedHostUse> uses, int64_t round_ns, int64_t read_ns,
                int32_t space, int64_t num_chunks);

  // Returns whether no use of the space is predicted.
  bool empty() const { return uses_.empty(); }
  int64_t clock() const { return clock_; }
  // Records that the chunk is being used. O(log uses of the chunk).
  void Used(ChunkId chunk);
  // Records that the chunk has left HOST.
  void Left(ChunkId chunk);
  // Returns its next use, or kNoUse. It is below the clock if other uses have overtaken it.
  int64_t NextUse(ChunkId chunk) const;
  // Returns the chunk to read now, or no value if none is due. `is_missing`: the chunk has bytes,
  // which are neither in HOST nor being read. Looks 4,096 uses ahead.
  std::optional<ChunkId> NextToRead(absl::FunctionRef<bool(ChunkId)> is_missing);

 private:
  struct Use {
    ChunkId chunk;
    bool overwrites = false;
    int64_t at_ns = 0;
  };
  // All counted from the first round's first use.
  int64_t FirstFrom(ChunkId chunk, int64_t index) const;   // The chunk's first use from `index` on.
  int64_t LastBefore(ChunkId chunk, int64_t index) const;  // Its last use before `index`.
  int64_t TimeOf(int64_t index) const;

  int64_t round_ns_ = 0;
  int64_t read_ns_ = 0;
  int64_t slack_ = 0;  // A use further from the clock than this is out of order.
  int64_t clock_ = 0;
  std::set<int64_t> late_;  // Uses that the clock has left behind, but that may still be made.
  // Results that NextToRead keeps. Nothing is missing before cursor_, and what is missing up to
  // urgent_until_ is due. Nothing else is due before quiet_until_ns_, as computed when the clock
  // was quiet_since_.
  int64_t cursor_ = 0;
  int64_t urgent_until_ = -1;
  int64_t quiet_until_ns_ = 0;
  int64_t quiet_since_ = 0;
  std::vector<Use> uses_;          // The uses of a round.
  std::vector<int64_t> first_of_;  // By chunk: its uses are indices_[first_of_[i] ...].
  std::vector<int64_t> indices_;   // Indices into uses_.
  std::vector<int64_t> next_;      // By chunk: its next use when last reported.
};

}  // namespace gemini::policies
