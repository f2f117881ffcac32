// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/kept_gradients.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "policies/trace/host_update.h"

namespace gemini::policies {
namespace {

// Makes the update of the param range and the grad range behind it. Appends ranges for masters and
// moments to the trace.
PlannedUpdate MakeUpdate(int32_t param, RangeTrace& trace) {
  PlannedUpdate update;
  for (const ChunkKind kind : TrainableKinds(trace.format_of(trace.ranges[param]))) {
    if (kind == ChunkKind::kParam || kind == ChunkKind::kGrad) {
      update.ranges[kind] = kind == ChunkKind::kParam ? param : RangeTrace::GradOf(param);
      continue;
    }
    update.ranges[kind] = static_cast<int32_t>(trace.ranges.size());
    PlannedRange range = trace.ranges[param];
    range.kind = kind;
    trace.ranges.push_back(range);
  }
  return update;
}

// Whether what the trust ratio of the range takes is no part of the last operator's measured time:
// of what is updated in HOST or on DEVICE, as the plan has it.
bool HasTimedTrustRatio(const RangeTrace& trace, int32_t param) {
  const PlannedRange& range = trace.ranges[param];
  return TimesTrustRatios(trace.format_of(range), trace.states_on_nvme[range.space]);
}

// What an update of the range's elements on DEVICE takes.
double OnDeviceNs(const RangeTrace& trace, int32_t range, const CostModel& costs) {
  return ExactTransferNs(trace.ElementsOf(trace.ranges[range]),
                         costs.device_update_elements_per_second);
}

}  // namespace

std::vector<int32_t> MayKeepGradients(const RangeTrace& trace) {
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
    const int32_t grad = RangeTrace::GradOf(param);
    // Moments that are on NVME between updates are far from DEVICE.
    if (trace.states_on_nvme[trace.ranges[param].space]) continue;
    const StateFormat& format = trace.format_of(trace.ranges[param]);
    if (!UpdatesInPlace(format)) continue;
    if (has_gradient[grad] && !is_refused[grad] && !is_refused[param]) params.push_back(param);
  }
  return params;
}

bool MayBeLate(const RangeTrace& trace, absl::Span<const int32_t> keepable) {
  return std::ranges::all_of(keepable, [&](int32_t param) {
    return TakesLateGradients(trace.format_of(trace.ranges[param]));
  });
}

RangeTrace WithKeptGradients(const RangeTrace& trace, absl::Span<const int32_t> updated,
                             absl::Span<const int32_t> late) {
  RangeTrace changed = trace;
  changed.updated.clear();
  changed.operators.clear();
  changed.uses.clear();
  changed.gradient_outs.clear();
  std::vector<bool> on_device(trace.ranges.size()), is_late(trace.ranges.size()),
      is_kept(trace.ranges.size());  // The last by grad range.
  const auto grad_of = RangeTrace::GradOf;
  for (const int32_t param : updated) on_device[param] = is_kept[grad_of(param)] = true;
  for (const int32_t param : late) is_late[param] = is_kept[grad_of(param)] = true;
  for (const int32_t param : trace.updated) {
    if (is_late[param]) changed.late_gradients.push_back(grad_of(param));
    if (!on_device[param]) {
      changed.updated.push_back(param);
      continue;
    }
    changed.device_updates.push_back(MakeUpdate(param, changed));
  }
  std::vector<int32_t> kept_at(trace.ranges.size(), -1);  // By grad range: the last position.
  std::vector<int32_t> landing,
      before;  // Grad ranges that get a gradient in this interval, the last one.
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
      if (!is_kept[out.range]) {
        changed.gradient_outs.push_back(out);
      } else if (kept_at[out.range] != position) {
        kept_at[out.range] = position;
        landing.push_back(out.range);
        changed.uses.push_back({.range = out.range, .written = true, .is_pinned = false});
      }
    }
    if (position < trace.num_positions() - 1) {
      // It comes at the end of its interval, when what leaves after that operator has left already.
      for (const int32_t range : before) {
        if (kept_at[range] == position) continue;
        changed.uses.push_back({.range = range, .written = true, .is_pinned = false});
      }
      before = std::exchange(landing, {});
    } else {
      for (const PlannedUpdate& update : changed.device_updates) {
        for (const int32_t range : update.used()) {
          changed.uses.push_back({.range = range, .written = true});
        }
      }
      for (const int32_t range : changed.late_gradients) {
        changed.uses.push_back({.range = range, .written = true});
      }
    }
    at.num_uses = static_cast<int32_t>(changed.uses.size()) - at.first_use;
    changed.operators.push_back(at);
  }
  return changed;
}

RangeTrace WithKeptGradients(const RangeTrace& trace, const Plan& plan) {
  std::vector<int32_t> updated, late;
  for (const PlannedUpdate& update : plan.device_updates) updated.push_back(update.param());
  for (const int32_t grad : plan.late_gradients) late.push_back(RangeTrace::ParamOf(grad));
  return WithKeptGradients(trace, updated, late);
}

int64_t TrustRatioNs(const RangeTrace& trace, const CostModel& costs) {
  double ns = 0;
  for (const PlannedUpdate& update : trace.device_updates) {
    if (HasTimedTrustRatio(trace, update.param())) ns += OnDeviceNs(trace, update.param(), costs);
  }
  for (const int32_t param : trace.updated) {
    if (!HasTimedTrustRatio(trace, param)) continue;
    ns += static_cast<double>(HostUpdateNs(trace, trace.ranges[param], costs));
  }
  return std::llround(kTrustByUpdate * ns);
}

int64_t LastOperatorNs(const RangeTrace& trace, const CostModel& costs) {
  double ns = 0;
  for (const PlannedUpdate& update : trace.device_updates) {
    ns += OnDeviceNs(trace, update.param(), costs);
  }
  for (const int32_t range : trace.late_gradients) {
    ns += kSquaresByUpdate * OnDeviceNs(trace, range, costs);
  }
  return TrustRatioNs(trace, costs) + std::llround(ns);
}

}  // namespace gemini::policies
