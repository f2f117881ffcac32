// SPDX-License-Identifier: Apache-2.0
#include "policies/device_updates.h"

#include <cmath>
#include <set>

namespace gemini::policies {
namespace {

int32_t AppendMoment(PlannedRange range, ChunkKind kind, RangeTrace& trace) {
  range.kind = kind;
  trace.ranges.push_back(range);
  return static_cast<int32_t>(trace.ranges.size()) - 1;
}

}  // namespace

std::vector<int32_t> UpdatableOnDevice(const RangeTrace& trace) {
  const int32_t last = trace.num_positions() - 1;
  std::vector<bool> has_gradient(trace.ranges.size()), is_refused(trace.ranges.size());
  std::set<int32_t> tensors;
  for (const RangeTrace::GradOut& out : trace.gradient_outs) {
    has_gradient[out.range] = true;
    const bool is_first = tensors.insert(out.tensor).second;
    if (out.position == last || !is_first) is_refused[out.range] = true;
  }
  for (const RangeUse& use : trace.uses) {
    if (use.written || trace.ranges[use.range].kind == ChunkKind::kGrad)
      is_refused[use.range] = true;
  }
  std::vector<int32_t> params;
  for (const int32_t param : trace.updated) {
    const int32_t grad = param + 1;
    if (has_gradient[grad] && !is_refused[grad] && !is_refused[param]) params.push_back(param);
  }
  return params;
}

RangeTrace WithDeviceUpdates(const RangeTrace& trace, absl::Span<const int32_t> params) {
  RangeTrace changed = trace;
  changed.updated.clear();
  changed.operators.clear();
  changed.uses.clear();
  changed.gradient_outs.clear();
  std::vector<bool> on_device(trace.ranges.size());  // Parameters and gradients.
  for (const int32_t param : params) on_device[param] = on_device[param + 1] = true;
  for (const int32_t param : trace.updated) {
    if (!on_device[param]) {
      changed.updated.push_back(param);
      continue;
    }
    changed.device_updates.push_back(
        {.param = param,
         .exp_avg = AppendMoment(trace.ranges[param], ChunkKind::kExpAvg, changed),
         .exp_avg_sq = AppendMoment(trace.ranges[param], ChunkKind::kExpAvgSq, changed),
         .grad = param + 1});
  }
  std::vector<int32_t> kept_at(trace.ranges.size(), -1);  // By grad range: the last position.
  size_t next_out = 0;
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    RangeTrace::Operator at = trace.operators[position];
    at.first_use = static_cast<int32_t>(changed.uses.size());
    const absl::Span<const RangeUse> uses = trace.uses_of(position);
    changed.uses.insert(changed.uses.end(), uses.begin(), uses.end());
    for (; next_out < trace.gradient_outs.size() &&
           trace.gradient_outs[next_out].position == position;
         ++next_out) {
      const RangeTrace::GradOut& out = trace.gradient_outs[next_out];
      if (!on_device[out.range]) {
        changed.gradient_outs.push_back(out);
      } else if (kept_at[out.range] != position) {
        kept_at[out.range] = position;
        changed.uses.push_back({.range = out.range, .written = true, .is_pinned = false});
      }
    }
    if (position == trace.num_positions() - 1) {
      for (const PlannedUpdate& update : changed.device_updates) {
        for (const int32_t range : {update.param, update.exp_avg, update.exp_avg_sq, update.grad}) {
          changed.uses.push_back({.range = range, .written = true});
        }
      }
    }
    at.num_uses = static_cast<int32_t>(changed.uses.size()) - at.first_use;
    changed.operators.push_back(at);
  }
  return changed;
}

int64_t DeviceUpdateNs(const RangeTrace& trace, const CostModel& costs) {
  int64_t ns = 0;
  for (const PlannedUpdate& update : trace.device_updates) {
    const int64_t elements =
        trace.ranges[update.param].num_bundles * trace.chunk_bytes / kElementBytes;
    ns +=
        std::llround(static_cast<double>(elements) * 1e9 / costs.device_update_elements_per_second);
  }
  return ns;
}

}  // namespace gemini::policies
