// SPDX-License-Identifier: Apache-2.0
// When the chunks of one space are used next in HOST, by the uses that a plan foresees: what to
// give up when there is no room (what is used last), and what to read ahead from NVME. Followed by
// client/host/chunk_store.h and by the simulator.
// Ahead:  what is missing is read in the order of use, but not before it must be: reading early
//         takes room from chunks that would otherwise not have to leave and come back. The i-th
//         missing chunk from now on is there in time if there are i reads left until its use; once
//         that is in doubt for any of them, the first is due.
// Clock:  foreseen uses are counted from the first round's first, round after round. The clock is
//         behind the furthest one that has been made. Uses come about nearly in the order foreseen:
//         several threads make them, each in its own order, so one that is told is taken for the
//         nearest foreseen of its chunk. One that is too far from the clock was not foreseen, and
//         changes nothing. One that the clock has left far behind is taken for made.
// Source: Belady, "A study of replacement algorithms for a virtual-storage computer" (IBM Systems
//         Journal 5(2), 1966); forestall, of Kimbrel et al., "A trace-driven comparison of
//         algorithms for parallel prefetching and caching" (OSDI 1996).
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

  HostForesight() = default;  // Foresees nothing.
  // The uses of `space` among `uses`, those of a round that takes `round_ns`, for chunks 0 to
  // num_chunks - 1; others are left out. To read one takes `read_ns`. A peer may have made them: of
  // times that are negative or above kMostNs nothing is foreseen.
  HostForesight(absl::Span<const PlannedHostUse> uses, int64_t round_ns, int64_t read_ns,
                int32_t space, int64_t num_chunks);

  // Nothing of the space is foreseen.
  bool empty() const { return uses_.empty(); }
  int64_t clock() const { return clock_; }
  // Tells that the chunk is being used. O(log uses of the chunk).
  void Used(ChunkId chunk);
  // Tells that the chunk has left HOST.
  void Left(ChunkId chunk);
  // Its next use, or kNoUse; below the clock when others have overtaken it.
  int64_t NextUse(ChunkId chunk) const;
  // What is to be read now; nothing: nothing is due. `is_missing`: it has bytes, and not in HOST,
  // nor are they coming. Looks 4,096 uses ahead.
  std::optional<ChunkId> NextToRead(absl::FunctionRef<bool(ChunkId)> is_missing);

 private:
  struct Use {
    ChunkId chunk;
    bool overwrites = false;
    int64_t at_ns = 0;
  };
  // Both counted from the first round's first use.
  int64_t FirstFrom(ChunkId chunk, int64_t index) const;  // The chunk's first use from `index` on.
  int64_t TimeOf(int64_t index) const;

  int64_t round_ns_ = 0;
  int64_t read_ns_ = 0;
  int64_t slack_ = 0;  // What is further from the clock than this is out of order.
  int64_t clock_ = 0;
  std::set<int64_t> late_;  // Uses that the clock has left behind, and that may still be made.
  // What NextToRead knows: nothing is missing before cursor_, what is missing up to urgent_until_
  // is due, and else nothing is before quiet_until_ns_, as it was when the clock was quiet_since_.
  int64_t cursor_ = 0;
  int64_t urgent_until_ = -1;
  int64_t quiet_until_ns_ = 0;
  int64_t quiet_since_ = 0;
  std::vector<Use> uses_;          // Of a round.
  std::vector<int64_t> first_of_;  // By chunk: those of chunk i are indices_[first_of_[i] ...].
  std::vector<int64_t> indices_;   // Of uses_.
  std::vector<int64_t> next_;      // By chunk: as it was when last told.
};

}  // namespace gemini::policies
