// SPDX-License-Identifier: Apache-2.0
// Simulates HOST where it lacks room for all chunks: what NVME reads and writes in a round, and
// when each chunk is in HOST for its use.
// Rule: chunks are read ahead and spilled as clients do it (policies/simulator/host_foresight.h).
// One transfer is prepared while another is in flight.
// Spills: a victim without a valid copy on NVME is written first. That delays its own slot alone,
// because each direction of the disk is a queue of its own.
// Misses: a chunk that is requested and not in HOST is read after the transfers that have begun.
// Holds: a chunk is held while it is read, and while it is used. In between it may be spilled.
// Copies: a committed chunk that is read keeps its copy on NVME until it changes. A gradient loses
// its copy when it is read.
// Spaces: each has its own slots, and they take turns at reading ahead.
// Units: nanoseconds; slots of chunk_bytes.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/cost_model.h"
#include "gemini/ids.h"
#include "gemini/plan/spare_slots.h"
#include "policies/trace/host_access.h"
#include "policies/trace/host_uses.h"
#include "policies/trace/plan_inputs.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// Returns Plan::host_read_ns: the spilled chunk is written while another is read.
int64_t HostReadNs(int64_t chunk_bytes, const CostModel& costs);

// Returns whether all chunks of the trace have room in HOST, beside the spare slots of their
// spaces.
bool HostHoldsAll(const RangeTrace& trace, int64_t host_bytes);

// Returns the slots that each space has for its chunks: its share of host_bytes by its chunks, less
// SlotsBetweenChunks, but always enough for an update. For the case that HOST does not hold all.
std::vector<int64_t> SlotsOfSpaces(const RangeTrace& trace, int64_t host_bytes);

struct NvmeTransfer {
  bool is_write = false;
  int32_t space = 0;
  ChunkId chunk;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct HostRound {
  int64_t disk_ns = 0;   // The longer one of the times of its reads and of its writes.
  int64_t round_ns = 0;  // At least disk_ns and the requested length.
  // By use: when its chunk, or the room for it, is ready, from the round's beginning. 0: earlier.
  std::vector<int64_t> ready_ns;
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  // The transfers that began in the round, in that order, with times from its beginning.
  std::vector<NvmeTransfer> transfers;
};

// How a use that has to wait affects the uses requested after it.
enum class LateUses : uint8_t {
  kDelayAll,  // It delays them as much, because their times assume that nothing waits.
  kAsked,     // It does not, because their times include the wait already.
};

// Returns the round in steady state for `uses`, the HostUses of a round that takes `round_ns`.
// `slots_of_space` has all spaces of the uses. Once `interrupt` returns an error, the result is
// void, but has a ready_ns for each use.
HostRound PlayHost(absl::Span<const HostUse> uses, absl::Span<const int64_t> slots_of_space,
                   int64_t chunk_bytes, const CostModel& costs, int64_t round_ns, LateUses late,
                   const PlanInterrupt& interrupt = {});

// Returns when HOST is ready for each of the accesses. `uses` are their HostUses, and `round` is
// PlayHost of these.
HostTimes TimesOf(absl::Span<const HostAccess> accesses, absl::Span<const HostUse> uses,
                  const HostRound& round);

}  // namespace gemini::policies
