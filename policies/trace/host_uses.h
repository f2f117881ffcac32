// SPDX-License-Identifier: Apache-2.0
// Which chunks are used in HOST in a round, and when: what a played round did there, chunk by
// chunk.
// Uses:  a fetch reads each chunk. A gradient that leaves overwrites the chunks that it fills, and
//        changes the one that it does not: others may be in it. What is written back overwrites. An
//        update changes, bundle after bundle, parameters and moments, and reads the gradient; the
//        three of bundles that are updated on DEVICE are given up. States whose home is NVME only
//        pass through a window of their own: they have no uses here (policies/trace/host_update.h).
// Units: nanoseconds of the round.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/ids.h"
#include "gemini/plan/plan.h"
#include "policies/trace/host_access.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

enum class HostUseKind : uint8_t {
  kReads,
  kChanges,     // Reads and writes.
  kOverwrites,  // Needs room, not the bytes.
  // The bytes are nowhere below DEVICE afterwards. No use that anybody makes or foresees.
  kGivesUp,
};

struct HostUse {
  int32_t space = 0;
  ChunkId chunk;
  HostUseKind kind = HostUseKind::kReads;
  int64_t asked_ns = 0;      // Of the round in which it comes: from 0 to its end.
  int64_t held_ns = 0;       // Stays in HOST so long, from when it is there.
  int64_t rounds_after = 0;  // How many after the one that lists its access.
  int32_t access = 0;        // Of which it is a part, by index; and which one of its chunks.
  int32_t part = 0;
};

// In their order in a round that takes `round_ns` > 0. `trace` is the one that was played.
std::vector<HostUse> HostUses(const RangeTrace& trace, const Plan& plan,
                              absl::Span<const HostAccess> accesses, int64_t round_ns);

// As a plan has them.
std::vector<PlannedHostUse> PlannedHostUses(absl::Span<const HostUse> uses);

}  // namespace gemini::policies
