// SPDX-License-Identifier: Apache-2.0
// Plays what a round uses in HOST, round after round, where HOST lacks room for all chunks: when
// each chunk is there, and what NVME reads and writes for it.
// Model:  the rule that clients follow (policies/simulator/host_foresight.h). Reading ahead
//         prepares one transfer beside the one under way. A victim without a valid copy on NVME is
//         written first: that is in the way of its own slot alone, for each direction of the disk
//         is a queue of its own. What is asked for and not there goes behind what was begun. A
//         chunk is held from when it is there until its use is over. Only committed chunks keep
//         their copy on NVME when they are read, until they change.
// Spaces: each has slots of its own, and they take turns at reading ahead.
// Units:  nanoseconds; slots of chunk_bytes.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gemini/cost_model.h"
#include "gemini/ids.h"
#include "gemini/plan/spare_slots.h"
#include "policies/trace/host_access.h"
#include "policies/trace/host_uses.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {

// As Plan::host_read_ns: the one that is spilled is written while another is read.
int64_t HostReadNs(int64_t chunk_bytes, const CostModel& costs);

// Whether all chunks of the trace have room in HOST, beside the spare slots of their spaces.
bool HostHoldsAll(const RangeTrace& trace, int64_t host_bytes);

// By space, what it has for its chunks: its share of host_bytes by its chunks, less kFreeSlots, and
// enough for an update in any case. HOST does not hold all.
std::vector<int64_t> SlotsOfSpaces(const RangeTrace& trace, int64_t host_bytes);

struct NvmeTransfer {
  bool is_write = false;
  int32_t space = 0;
  ChunkId chunk;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct HostRound {
  int64_t disk_ns = 0;   // What its reads take, or its writes.
  int64_t round_ns = 0;  // That at least, and what was asked for.
  // By use, since the round's beginning: its chunk is there, or the room for it. 0: before that.
  std::vector<int64_t> ready_ns;
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  std::vector<NvmeTransfer>
      transfers;  // That the round began, since its beginning, as they were begun.
};

// What a use that is late does to those that are asked for after it.
enum class LateUses : uint8_t {
  kDelayAll,  // They are asked for so much later: of a round that was played as if all were there.
  kAsked,     // Nothing: when they are asked for has it already.
};

// The round that all others are like, of `uses`: HostUses of a round that takes `round_ns`.
// `slots_of_space` has all spaces of the uses.
HostRound PlayHost(absl::Span<const HostUse> uses, absl::Span<const int64_t> slots_of_space,
                   int64_t chunk_bytes, const CostModel& costs, int64_t round_ns, LateUses late);

// When HOST is ready for each of the accesses, of which `uses` are HostUses; `round` is PlayHost of
// them.
HostTimes TimesOf(absl::Span<const HostAccess> accesses, absl::Span<const HostUse> uses,
                  const HostRound& round);

}  // namespace gemini::policies
