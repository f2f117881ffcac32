// SPDX-License-Identifier: Apache-2.0
// A trace packed into chunks, which says which ranges each operator pins. The planner and the
// simulator read it.
// Units: sizes in chunks of chunk_bytes, times in nanoseconds; ranges by index.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/plan/trace.h"

namespace gemini::policies {

struct RangeUse {
  int32_t range = 0;
  bool written = false;
  bool is_pinned = true;  // If false, a gradient is written to it and no operator pins it.
};

struct RangeTrace {
  struct Operator {
    int32_t first_use = 0;
    int32_t num_uses = 0;
    int64_t compute_ns = 0;
    int64_t non_model_peak_bytes = 0;
    int64_t room_bytes = 0;  // As Trace::room_bytes; 0 where nothing is known.
  };
  struct GradOut {
    int32_t position = 0;
    int32_t range = 0;       // The grad range that it is written to.
    int64_t size_bytes = 0;  // The tensor's bytes.
    int32_t tensor = 0;
  };
  std::string phase;
  uint64_t fingerprint = 0;  // The trace's.
  int64_t chunk_bytes = 0;
  std::vector<PlannedRange> ranges;
  std::vector<Operator> operators;
  std::vector<RangeUse> uses;  // Each range at most once for an operator.
  std::vector<GradOut> gradient_outs;
  // Param ranges that the update changes, in its order, in HOST and on DEVICE, and the grad ranges
  // of some that are updated in HOST (policies/trace/kept_gradients.h).
  std::vector<int32_t> updated;
  std::vector<PlannedUpdate> device_updates;
  std::vector<int32_t> late_gradients;
  std::vector<int64_t> chunks_of_space;  // By space: chunks with payload whose home is HOST.
  std::vector<StateFormat> formats;      // By space.
  std::vector<bool> states_on_nvme;  // By space: whether NVME is the home of its optimizer states.
  absl::Span<const RangeUse> uses_of(int32_t position) const {
    const Operator& at = operators[position];
    return absl::MakeConstSpan(uses).subspan(at.first_use, at.num_uses);
  }
  // Return the grad range of a param range that is trained, and the param range of a grad range.
  static constexpr int32_t GradOf(int32_t param) { return param + 1; }
  static constexpr int32_t ParamOf(int32_t grad) { return grad - 1; }
  int32_t num_positions() const { return static_cast<int32_t>(operators.size()); }
  bool keeps_gradients() const { return !device_updates.empty() || !late_gradients.empty(); }
  const StateFormat& format_of(const PlannedRange& range) const { return formats[range.space]; }
  // Returns the HOST slots beside those chunks.
  int64_t SpareSlotsOf(size_t space) const {
    return SpareSlots(formats[space], states_on_nvme[space]);
  }
  // Returns the bytes that tensors may fill of each of its chunks (gemini/state_format.h).
  int64_t PayloadOf(const PlannedRange& range) const {
    return PayloadBytes(format_of(range), chunk_bytes);
  }
  // Returns the elements that its chunks have room for.
  int64_t ElementsOf(const PlannedRange& range) const {
    return range.num_bundles * PayloadOf(range) / ElementBytes(format_of(range).element);
  }
};

// The uses that are pinned, as Plan::first_use and Plan::uses have them.
struct PinnedUses {
  explicit PinnedUses(const RangeTrace& trace);
  std::vector<int32_t> first_use;
  std::vector<int32_t> uses;
};

// Packs the trace by Layout::Pack, one space after the other; all updates are in HOST.
// INVALID_ARGUMENT: as CheckTrace, or a chunk size that Layout refuses.
absl::StatusOr<RangeTrace> PackTrace(const Trace& trace, int64_t chunk_bytes);

}  // namespace gemini::policies
