// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/plan_effort.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gemini/state_format.h"

namespace gemini::policies {
namespace {

constexpr int64_t kTooMany = kMaxPlanSteps + 1;
constexpr int64_t kStepsOfTensor = 8;
constexpr int64_t kStepsOfUpdatedChunk = 8;

class StepCount {
 public:
  void Add(int64_t count, int64_t steps_each) {
    steps_ = std::min(steps_ + std::min(count, kTooMany) * steps_each, kTooMany);
  }
  int64_t steps() const { return steps_; }

 private:
  int64_t steps_ = 0;
};

}  // namespace

int64_t PlanSteps(const RangeTrace& trace) {
  StepCount count;
  count.Add(static_cast<int64_t>(trace.operators.size() + trace.uses.size()), 1);
  for (const RangeUse& use : trace.uses) count.Add(trace.ranges[use.range].num_bundles, 1);
  for (const RangeTrace::GradOut& out : trace.gradient_outs) {
    const int64_t payload_bytes = trace.PayloadOf(trace.ranges[out.range]);
    count.Add(std::max<int64_t>(out.size_bytes - 1, 0) / payload_bytes + 1, 1);
  }
  count.Add(static_cast<int64_t>(trace.ranges.size()), kStepsOfTensor / 2);
  for (const int32_t range : trace.updated) {
    count.Add(trace.ranges[range].num_bundles, kStepsOfUpdatedChunk);
  }
  return count.steps();
}

int64_t PlanSteps(const Trace& trace, int64_t chunk_bytes) {
  // All tensors of a space are packed by the payload of its trainable ones (gemini/layout.h).
  int64_t payload_bytes = chunk_bytes;
  for (const TracedTensor& tensor : trace.tensors) {
    const int64_t bytes = PayloadBytes(tensor.format, chunk_bytes);
    if (bytes > 0) payload_bytes = std::min(payload_bytes, bytes);
  }
  const auto chunks_of = [&](int32_t tensor) {
    return std::max<int64_t>(trace.tensors[tensor].size_bytes - 1, 0) / payload_bytes + 1;
  };
  StepCount count;
  count.Add(static_cast<int64_t>(trace.operators.size() + trace.uses.size()), 1);
  for (const TensorUse& use : trace.uses) count.Add(chunks_of(use.tensor), 1);
  for (const GradientOut& out : trace.gradient_outs) count.Add(chunks_of(out.tensor), 1);
  count.Add(static_cast<int64_t>(trace.tensors.size()), kStepsOfTensor);
  for (const int32_t tensor : trace.updated) count.Add(chunks_of(tensor), kStepsOfUpdatedChunk);
  return count.steps();
}

absl::Status CheckPlanSteps(int64_t steps) {
  if (steps <= kMaxPlanSteps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a trace of more than ", kMaxPlanSteps,
                   " operators, uses, chunks of uses and gradients is not planned: its chunks are "
                   "placed on demand. Use larger chunks, or fewer micro-batches a step"));
}

PlanEffort EffortFor(int64_t steps) {
  // As docs/benchmarks.md measures it, a step takes 0.05 to 0.1 us of each round that is played for
  // a rule, and twice that of a plan that is made of one.
  PlanEffort effort;
  if (steps > 50'000) effort.most_rounds = 1;
  if (steps > 1'000'000) {
    effort.most_closings = 2;
    effort.compares_rules = false;
  }
  effort.most_kept_tries = static_cast<int>(
      std::min<int64_t>(750'000 / std::max<int64_t>(steps, 1), effort.most_kept_tries));
  return effort;
}

}  // namespace gemini::policies
