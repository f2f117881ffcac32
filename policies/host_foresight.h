// SPDX-License-Identifier: Apache-2.0
// When the chunks of one space are used next in HOST, by the uses that a plan foresees: which of them to
// read ahead from NVME, and which to give up for it. Followed by client/chunk_store.h and by the simulator.
// Clock:  foreseen uses are counted from the first round's first, round after round. The clock is behind
//         the furthest one that has been made. Uses come about in the order foreseen: several threads
//         make them, each in its own order, so one that is told is taken for the nearest foreseen of its
//         chunk. One that is too far from the clock was not foreseen, and changes nothing. One that the
//         clock has left far behind is taken for made.
// Source: Belady, "A study of replacement algorithms for a virtual-storage computer" (IBM Systems Journal
//         5(2), 1966), and the aggressive prefetching of Cao, Felten, Karlin and Li, "A study of integrated
//         prefetching and caching strategies" (SIGMETRICS 1995): whenever the disk is free, read what is
//         missing and used first, in the place of what is used last, unless that is used before it.
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "gemini/ids.h"
#include "gemini/plan.h"

namespace gemini::policies {

class HostForesight {
 public:
  static constexpr int64_t kNoUse = std::numeric_limits<int64_t>::max();

  // The uses of `space` among those of a round, for chunks 0 to num_chunks - 1; others are left out.
  HostForesight(absl::Span<const PlannedHostUse> uses, int32_t space, int64_t num_chunks);

  // Nothing of the space is foreseen.
  bool empty() const { return uses_.empty(); }
  int64_t clock() const { return clock_; }
  // Tells that the chunk is being used. O(log uses of the chunk).
  void Used(ChunkId chunk);
  // Its next use, or kNoUse; below the clock when others have overtaken it.
  int64_t NextUse(ChunkId chunk) const;
  // Whether the chunk's bytes are needed at its next use.
  bool NeedsBytes(ChunkId chunk) const;

 private:
  struct Use {
    int64_t index = 0;  // In the round.
    bool overwrites = false;
  };
  absl::Span<const Use> UsesOf(ChunkId chunk) const;
  // The chunk's first use at `index` or later, counted from the first round's first.
  int64_t FirstFrom(absl::Span<const Use> uses, int64_t index) const;

  int64_t round_ = 0;  // Uses in a round.
  int64_t slack_ = 0;  // What is further from the clock than this is out of order.
  int64_t clock_ = 0;
  std::vector<int64_t> first_use_;  // By chunk: those of chunk i are uses_[first_use_[i] ...].
  std::vector<Use> uses_;
  std::vector<int64_t> next_;  // By chunk: as it was when last told.
};

}  // namespace gemini::policies
