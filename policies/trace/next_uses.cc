// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/next_uses.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gemini/device_shortage.h"

namespace gemini::policies {

NextUses::NextUses(const RangeTrace& trace)
    : next(trace.uses.size(), kNever),
      first(trace.ranges.size(), kNever),
      ends_at_update(trace.ranges.size()),
      comes_blank(trace.ranges.size()) {
  for (int32_t position = trace.num_positions() - 1; position >= 0; --position) {
    const RangeTrace::Operator& at = trace.operators[position];
    for (int32_t use = at.first_use; use < at.first_use + at.num_uses; ++use) {
      int32_t& seen = first[trace.uses[use].range];
      next[use] = seen;
      seen = position;
    }
  }
  for (const int32_t range : trace.updated) {
    ends_at_update[range] = true;
    ends_at_update[RangeTrace::GradOf(range)] = true;
  }
  for (const PlannedUpdate& update : trace.device_updates) comes_blank[update.grad()] = true;
  for (const int32_t range : trace.late_gradients) {
    comes_blank[range] = true;
    ends_at_update[range] = false;
  }
}

namespace {

int64_t ChunkBytesOf(const RangeTrace& trace, int32_t position) {
  int64_t bytes = 0;
  for (const RangeUse& use : trace.uses_of(position)) {
    bytes += trace.ranges[use.range].num_bundles * trace.chunk_bytes;
  }
  return bytes;
}

}  // namespace

int64_t LargestOperatorBytes(const RangeTrace& trace) {
  int64_t largest = 0;
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    largest = std::max(
        largest, ChunkBytesOf(trace, position) + trace.operators[position].non_model_peak_bytes);
  }
  return largest;
}

absl::StatusOr<std::vector<int32_t>> SlotsAtPositions(const RangeTrace& trace,
                                                      int64_t device_bytes) {
  std::vector<int32_t> slots(trace.num_positions());
  int32_t worst = -1;
  int64_t worst_bytes = 0, worst_chunk_bytes = 0;
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    const int64_t chunk_bytes = ChunkBytesOf(trace, position);
    const int64_t non_model_bytes = trace.operators[position].non_model_peak_bytes;
    const int64_t left_bytes = std::max<int64_t>(0, device_bytes - non_model_bytes);
    slots[position] = static_cast<int32_t>(
        std::min<int64_t>(left_bytes / trace.chunk_bytes, std::numeric_limits<int32_t>::max()));
    // CheckTrace and the layout bound both by 2^60.
    const int64_t needed_bytes = chunk_bytes + non_model_bytes;
    if (needed_bytes > device_bytes && needed_bytes > worst_bytes) {
      worst = position;
      worst_bytes = needed_bytes;
      worst_chunk_bytes = chunk_bytes;
    }
  }
  if (worst < 0) return slots;
  const bool is_update = trace.keeps_gradients() && worst == trace.num_positions() - 1;
  return DeviceTooSmall({.who = absl::StrCat("operator ", worst, " of phase ", trace.phase,
                                             is_update ? ", the update on DEVICE," : ""),
                         .chunk_bytes = worst_chunk_bytes,
                         .non_model_bytes = worst_bytes - worst_chunk_bytes},
                        device_bytes);
}

}  // namespace gemini::policies
