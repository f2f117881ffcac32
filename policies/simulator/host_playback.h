// SPDX-License-Identifier: Apache-2.0
// Plays what a round uses in HOST, round after round, where HOST lacks room for all chunks: when
// each chunk is there, and what NVME reads and writes for it.
// Model: the rule that clients follow (policies/simulator/host_foresight.h). Reading ahead prepares
// one transfer beside the one in flight. A victim without a valid copy on NVME is written first,
// which delays its own slot alone, because each direction of the disk is a queue of its own. A
// chunk that is requested and not there queues behind the transfers begun. A chunk is held from
// when it is there until its use is over. Only committed chunks keep their copy on NVME when they
// are read, until they change.
// Spaces: each has slots of its own, and they take turns at reading ahead.
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
// kFreeSlots, but always enough for an update. For the case that HOST does not hold all.
std::vector<int64_t> SlotsOfSpaces(const RangeTrace& trace, int64_t host_bytes);

struct NvmeTransfer {
  bool is_write = false;
  int32_t space = 0;
  ChunkId chunk;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct HostRound {
  int64_t disk_ns = 0;   // The time of its reads or of its writes.
  int64_t round_ns = 0;  // At least disk_ns, and the requested length.
  // By use, since the round's beginning: when its chunk, or the room for it, is there. 0: before
  // that.
  std::vector<int64_t> ready_ns;
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  std::vector<NvmeTransfer>
      transfers;  // That the round began, since its beginning, as they were begun.
};

// What a late use does to the uses requested after it.
enum class LateUses : uint8_t {
  kDelayAll,  // They are delayed as much: the round was played as if all were there.
  kAsked,     // Nothing: the times of their requests include it already.
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
