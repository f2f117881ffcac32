// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/host_update.h"

#include <algorithm>
#include <cmath>

#include "gemini/state_format.h"

namespace gemini::policies {
namespace {

int64_t UpdaterNs(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs) {
  return TransferNs(trace.ElementsOf(range), costs.update_elements_per_second);
}

// Each direction of the disk is a queue of its own, as in policies/simulator/host_playback.h.
int64_t DiskNs(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs) {
  const int64_t bytes = StateBytesOnNvme(trace, range);
  return bytes == 0 ? 0 : TransferNs(bytes, std::min(costs.nvme_read, costs.nvme_write));
}

}  // namespace

int64_t StateBytesOnNvme(const RangeTrace& trace, const PlannedRange& range) {
  if (!trace.states_on_nvme[range.space]) return 0;
  return range.num_bundles * NumStateChunks(trace.format_of(range)) * trace.chunk_bytes;
}

int64_t HostUpdateNs(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs) {
  return std::max(UpdaterNs(trace, range, costs), DiskNs(trace, range, costs));
}

bool WaitsForNvme(const RangeTrace& trace, const PlannedRange& range, const CostModel& costs) {
  return DiskNs(trace, range, costs) > UpdaterNs(trace, range, costs);
}

}  // namespace gemini::policies
