// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/range_trace.h"

#include <algorithm>

#include "gemini/layout.h"
#include "gemini/system/status_macros.h"

namespace gemini::policies {
namespace {

// Appends the ranges of one space; param_range gets that of each of its tensors.
absl::Status PackSpace(const Trace& trace, int64_t first_tensor, int64_t end_tensor,
                       RangeTrace& packed, std::vector<int32_t>& param_range) {
  std::vector<TensorSpec> specs;
  StateFormat format;
  bool states_on_nvme = false;
  for (int64_t i = first_tensor; i < end_tensor; ++i) {
    const TracedTensor& tensor = trace.tensors[i];
    if (tensor.group == TensorGroup::kTrainable) {
      format = tensor.format;
      states_on_nvme = tensor.states_on_nvme;
    }
    specs.push_back({.name = "", .size_bytes = tensor.size_bytes, .group = tensor.group});
  }
  GEMINI_ASSIGN_OR_RETURN(const Layout layout, Layout::Pack(specs, packed.chunk_bytes, format));
  std::vector<int64_t> length_at(layout.num_bundles(), 0);  // Where a range begins: its length.
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorPlace& place = layout.place(static_cast<int64_t>(i));
    int64_t& length = length_at[place.first_bundle.value()];
    length = std::max(length, place.num_bundles);
  }
  std::vector<int32_t> range_at(layout.num_bundles(), -1);
  const int64_t of_trainable =
      TrainableKinds(format).size() - (states_on_nvme ? NumStateChunks(format) : 0);
  int64_t chunks = 0;
  for (int64_t bundle = 0; bundle < layout.num_bundles(); bundle += length_at[bundle]) {
    const bool trainable = layout.group(BundleId(bundle)) == TensorGroup::kTrainable;
    PlannedRange range = {.space = trace.tensors[first_tensor].space,
                          .first = BundleId(bundle),
                          .num_bundles = length_at[bundle],
                          .kind = ChunkKind::kParam};
    range_at[bundle] = static_cast<int32_t>(packed.ranges.size());
    packed.ranges.push_back(range);
    if (trainable) {  // Right behind, as RangeTrace::GradOf says.
      range.kind = ChunkKind::kGrad;
      packed.ranges.push_back(range);
    }
    chunks += range.num_bundles * (trainable ? of_trainable : 1);
  }
  packed.chunks_of_space.push_back(chunks);
  packed.formats.push_back(format);
  packed.states_on_nvme.push_back(states_on_nvme);
  for (size_t i = 0; i < specs.size(); ++i) {
    const BundleId first = layout.place(static_cast<int64_t>(i)).first_bundle;
    param_range.push_back(range_at[first.value()]);
  }
  return absl::OkStatus();
}

}  // namespace

PinnedUses::PinnedUses(const RangeTrace& trace) {
  first_use.reserve(trace.operators.size() + 1);
  uses.reserve(trace.uses.size());
  first_use.push_back(0);
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    for (const RangeUse& use : trace.uses_of(position)) {
      if (use.is_pinned) uses.push_back(use.range);
    }
    first_use.push_back(static_cast<int32_t>(uses.size()));
  }
}

absl::StatusOr<RangeTrace> PackTrace(const Trace& trace, int64_t chunk_bytes) {
  GEMINI_RETURN_IF_ERROR(CheckTrace(trace));
  RangeTrace packed;
  packed.phase = trace.phase;
  packed.fingerprint = Fingerprint(trace);
  packed.chunk_bytes = chunk_bytes;
  std::vector<int32_t> param_range;  // By tensor.
  const int64_t num_tensors = static_cast<int64_t>(trace.tensors.size());
  for (int64_t first = 0; first < num_tensors;) {
    int64_t end = first;
    while (end < num_tensors && trace.tensors[end].space == trace.tensors[first].space) ++end;
    GEMINI_RETURN_IF_ERROR(PackSpace(trace, first, end, packed, param_range));
    first = end;
  }
  // An operator names each range once: where in `uses` its use of a range is.
  std::vector<int64_t> use_of_range(packed.ranges.size(), -1);
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    const TracedOperator& at = trace.operators[position];
    const int64_t first_use = static_cast<int64_t>(packed.uses.size());
    for (const TensorUse& use : trace.uses_of(position)) {
      const int32_t param = param_range[use.tensor];
      const int32_t range = use.kind == ChunkKind::kGrad ? RangeTrace::GradOf(param) : param;
      if (use_of_range[range] < first_use) {
        use_of_range[range] = static_cast<int64_t>(packed.uses.size());
        packed.uses.push_back({.range = range, .written = use.written});
      } else {
        packed.uses[use_of_range[range]].written |= use.written;
      }
    }
    packed.operators.push_back(
        {.first_use = static_cast<int32_t>(first_use),
         .num_uses = static_cast<int32_t>(static_cast<int64_t>(packed.uses.size()) - first_use),
         .compute_ns = at.compute_ns,
         .non_model_peak_bytes = at.non_model_peak_bytes,
         .room_bytes = trace.room_bytes.empty() ? 0 : trace.room_bytes[position]});
  }
  for (const GradientOut& out : trace.gradient_outs) {
    packed.gradient_outs.push_back({.position = out.position,
                                    .range = RangeTrace::GradOf(param_range[out.tensor]),
                                    .size_bytes = trace.tensors[out.tensor].size_bytes,
                                    .tensor = out.tensor});
  }
  std::vector<bool> listed(packed.ranges.size());
  for (const int32_t tensor : trace.updated) {
    const int32_t range = param_range[tensor];
    if (!listed[range]) packed.updated.push_back(range);
    listed[range] = true;
  }
  return packed;
}

}  // namespace gemini::policies
