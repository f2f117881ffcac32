// SPDX-License-Identifier: Apache-2.0
// Derives from a simulated round which chunks are used in HOST, and when each of them is.
// Uses: a fetch reads each chunk. A gradient that leaves overwrites the chunks that it fills, and
// changes a chunk that it does not fill, because others may be in it. A write-back overwrites. An
// update changes parameters and moments and reads the gradient, bundle after bundle. For bundles
// that are updated on DEVICE, HOST gives up all three. States whose home is NVME pass through a
// window of their own and have no uses here (policies/trace/host_update.h).
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
  // The bytes are nowhere below DEVICE afterwards. This is not a use that anybody makes or
  // predicts.
  kGivesUp,
};

struct HostUse {
  int32_t space = 0;
  ChunkId chunk;
  HostUseKind kind = HostUseKind::kReads;
  int64_t asked_ns = 0;      // In the round in which it happens: from 0 to its end.
  int64_t held_ns = 0;       // How long it stays in HOST, from when it is there.
  int64_t rounds_after = 0;  // How many rounds after the one that lists its access.
  int32_t access = 0;  // Index of the access that it is part of, and which of its chunks it is.
  int32_t part = 0;
};

// Returns the uses in their order in a round that takes `round_ns` > 0. `trace` is the one that was
// played.
std::vector<HostUse> HostUses(const RangeTrace& trace, const Plan& plan,
                              absl::Span<const HostAccess> accesses, int64_t round_ns);

// Converts uses to the form that a plan has.
std::vector<PlannedHostUse> PlannedHostUses(absl::Span<const HostUse> uses);

}  // namespace gemini::policies
