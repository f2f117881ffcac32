// SPDX-License-Identifier: Apache-2.0
// Whether a step costs the slower of computing and moving, and the time that was foretold. GPT-2
// shapes, DEVICE at a quarter of the parameters + the non-model peak, one thread computes.
// Compute:  a step with all parameters resident and no limit to the link: forward, backward,
//           update. The mean of a run before and one behind, for the machines' speed drifts; the
//           first sets the link.
// Transfer: the fewest bytes that any plan of the recorded trace moves, the slower direction, by
//           the link's bandwidth, which is set so that transfer is the wanted multiple of compute.
// Checked:  the losses equal those of the resident run, step by step; the measured rounds followed
//           their plan; and they moved the bytes that were foretold.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "policies/trace/moved_bytes.h"
#include "policies/trace/range_trace.h"
#include "tools/bench/bench_training.h"

namespace gemini::trainer {
namespace {

// A step takes 1 to 2 s on one thread of the machines that this ran on.
constexpr BenchShape kOverlapShape = {12, 768, 8192, 192};
// None that anything was tuned on.
constexpr BenchShape kOtherShapes[] = {{8, 640, 8192, 256}, {20, 512, 2048, 128}};
constexpr int64_t kChunkBytes = kMiB;
// One records, three follow its plan, two that which is made with their times.
constexpr int kWarmUpSteps = 6;
constexpr int kMeasuredSteps = 7;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Position of backward's first operator. The head is tied to the embedding, tensor 0: forward's
// first operator uses it, and its last.
absl::StatusOr<int32_t> TurnOf(const Trace& trace) {
  for (int32_t position = trace.num_positions() - 1; position > 0; --position) {
    for (const TensorUse& use : trace.uses_of(position)) {
      if (use.tensor == 0 && use.kind == ChunkKind::kParam) return position + 1;
    }
  }
  return absl::InternalError("the trace has no head");
}

// What the resident run says, and what follows from its trace.
struct Baseline {
  double forward = 0, backward = 0, step = 0;  // Seconds.
  int64_t device_bytes = 0;     // A quarter of the parameters and the non-model peak.
  policies::MovedBytes fewest;  // With that.
  std::vector<double> losses;
};

absl::StatusOr<Baseline> MeasureResident(const BenchShape& shape) {
  GEMINI_ASSIGN_OR_RETURN(auto training, BenchTraining::Start(shape, /*device_bytes=*/3 * kGiB,
                                                              kChunkBytes, /*bandwidth=*/0));
  GEMINI_ASSIGN_OR_RETURN(const StepTimes times, training->Run(kWarmUpSteps, kMeasuredSteps));
  Baseline baseline;
  baseline.forward = Median(times.forward);
  baseline.backward = Median(times.backward);
  baseline.step = Median(times.step);
  baseline.device_bytes = training->parameter_bytes() / 4 + training->after().non_model_peak_bytes;
  baseline.losses = training->losses();
  GEMINI_ASSIGN_OR_RETURN(const Trace trace, training->session().phases().TraceOf("train"));
  GEMINI_ASSIGN_OR_RETURN(const policies::RangeTrace ranges,
                          policies::PackTrace(trace, kChunkBytes));
  GEMINI_ASSIGN_OR_RETURN(baseline.fewest, policies::FewestBytes(ranges, baseline.device_bytes));
  GEMINI_RETURN_IF_ERROR(training->session().Close());
  return baseline;
}

// The bytes that a plan moves in forward and in backward.
struct Passes {
  policies::MovedBytes forward, backward;
};

// `trace`: as the plan was made of.
Passes BytesOfPasses(const Plan& plan, const policies::RangeTrace& trace, int32_t turn) {
  Passes passes;
  const int32_t end = plan.num_positions();
  const auto pass = [&](int32_t position) -> policies::MovedBytes& {
    return position < turn ? passes.forward : passes.backward;
  };
  const auto bytes_of = [&](int32_t range) {
    return plan.ranges[range].num_bundles * plan.chunk_bytes;
  };
  for (const PlannedFetch& fetch : plan.fetches) {
    if (!fetch.blank) pass(fetch.needed_at % end).fetch_bytes += bytes_of(fetch.range);
  }
  // What leaves when the update has ended leaves beside the next forward.
  for (const PlannedEviction& eviction : plan.evictions) {
    if (!eviction.writes_back) continue;
    pass((eviction.after + 1) % end).evict_bytes += bytes_of(eviction.range);
  }
  for (const policies::RangeTrace::GradOut& out : trace.gradient_outs) {
    const auto keeps = [&](const PlannedUpdate& update) { return update.grad() == out.range; };
    if (std::ranges::any_of(plan.device_updates, keeps)) continue;
    if (std::ranges::find(plan.late_gradients, out.range) != plan.late_gradients.end()) continue;
    pass(out.position).evict_bytes += out.size_bytes;
  }
  return passes;
}

int64_t Slower(const policies::MovedBytes& bytes) {
  return std::max(bytes.fetch_bytes, bytes.evict_bytes);
}

// A run under the budget, with a bandwidth that makes transfer a multiple of compute.
struct Overlap {
  Baseline baseline;
  double bandwidth = 0;
  double transfer = 0;       // Seconds, as are those below.
  double sum_of_passes = 0;  // Over forward and backward: the slower of computing and moving.
  StepTimes times;
  double step = 0;
  Plan plan;
  policies::MovedBytes moved;                       // A step.
  std::array<double, kNumStallCauses> stalls = {};  // A step.
  client::PhaseStats rounds;                        // In the measured steps.
  bool checked = false;

  double predicted() const { return static_cast<double>(plan.prediction.round_ns) * 1e-9; }
  double time_error() const { return std::abs(predicted() - step) / step; }
};

absl::StatusOr<Overlap> MeasureOverlap(const BenchShape& shape, double transfer_by_compute) {
  at::set_num_threads(1);
  Overlap result;
  GEMINI_ASSIGN_OR_RETURN(result.baseline, MeasureResident(shape));
  const Baseline& baseline = result.baseline;
  const auto fewest = static_cast<double>(Slower(baseline.fewest));
  result.transfer = transfer_by_compute * baseline.step;
  result.bandwidth = fewest / result.transfer;
  GEMINI_ASSIGN_OR_RETURN(auto training,
                          BenchTraining::Start(shape, baseline.device_bytes, kChunkBytes,
                                               static_cast<int64_t>(result.bandwidth)));
  GEMINI_ASSIGN_OR_RETURN(result.times, training->Run(kWarmUpSteps, kMeasuredSteps));
  result.step = Median(result.times.step);
  GEMINI_ASSIGN_OR_RETURN(const Trace trace, training->session().phases().TraceOf("train"));
  GEMINI_RETURN_IF_ERROR(training->session().phases().plan_status());
  GEMINI_ASSIGN_OR_RETURN(result.plan, training->session().phases().PlanOf("train"));

  const client::TrainingStats& after = training->after();
  const client::TrainingStats measured = after.Since(training->before());
  result.moved = {.fetch_bytes = measured.fetch_bytes / kMeasuredSteps,
                  .evict_bytes = measured.evict_bytes / kMeasuredSteps};
  for (int i = 0; i < kNumStallCauses; ++i) {
    result.stalls[i] = measured.stall_seconds_by_cause[i] / kMeasuredSteps;
  }
  result.rounds = measured.phases;
  // The prefetches of one step for the next cross the borders, and cancel out.
  result.checked = training->losses() == baseline.losses &&
                   result.rounds.planned_rounds == kMeasuredSteps &&
                   result.moved.fetch_bytes == result.plan.prediction.fetch_bytes &&
                   result.moved.evict_bytes == result.plan.prediction.evict_bytes &&
                   after.device_peak_bytes <= after.device_budget_bytes;

  GEMINI_RETURN_IF_ERROR(training->session().Close());
  training.reset();
  GEMINI_ASSIGN_OR_RETURN(const Baseline behind, MeasureResident(shape));
  for (double Baseline::*time : {&Baseline::forward, &Baseline::backward, &Baseline::step}) {
    result.baseline.*time = (baseline.*time + behind.*time) / 2;
  }

  // The fewest bytes, parted as the plan's. What a step does behind backward belongs to backward,
  // whose gradients it waits for.
  GEMINI_ASSIGN_OR_RETURN(const int32_t turn, TurnOf(trace));
  GEMINI_ASSIGN_OR_RETURN(const policies::RangeTrace ranges,
                          policies::PackTrace(trace, kChunkBytes));
  const Passes passes = BytesOfPasses(result.plan, ranges, turn);
  const auto scale = [](int64_t fewest_bytes, int64_t planned_bytes) {
    return static_cast<double>(fewest_bytes) / static_cast<double>(planned_bytes);
  };
  const double fetch_scale =
      scale(baseline.fewest.fetch_bytes, passes.forward.fetch_bytes + passes.backward.fetch_bytes);
  const double evict_scale =
      scale(baseline.fewest.evict_bytes, passes.forward.evict_bytes + passes.backward.evict_bytes);
  const auto slower = [&](double compute, const policies::MovedBytes& bytes) {
    return std::max({compute,
                     static_cast<double>(bytes.fetch_bytes) * fetch_scale / result.bandwidth,
                     static_cast<double>(bytes.evict_bytes) * evict_scale / result.bandwidth});
  };
  result.sum_of_passes = slower(baseline.forward, passes.forward) +
                         slower(baseline.step - baseline.forward, passes.backward);
  return result;
}

void Report(benchmark::State& state, const Overlap& overlap) {
  const auto report = [&](const std::string& name, auto value) {
    state.counters[name] = static_cast<double>(value);
  };
  const Prediction& prediction = overlap.plan.prediction;
  report("step_s", overlap.step);
  report("forward_s", Median(overlap.times.forward));
  report("backward_s", Median(overlap.times.backward));
  report("compute_s", overlap.baseline.step);
  report("compute_forward_s", overlap.baseline.forward);
  report("compute_backward_s", overlap.baseline.backward);
  report("transfer_s", overlap.transfer);
  report("sum_of_passes_s", overlap.sum_of_passes);
  report("predicted_s", overlap.predicted());
  report("predicted_compute_s", static_cast<double>(prediction.compute_ns) * 1e-9);
  report("simulator_time_error", overlap.time_error());
  report("bandwidth_bytes_per_second", overlap.bandwidth);
  report("device_bytes", overlap.baseline.device_bytes);
  report("fewest_fetch_bytes", overlap.baseline.fewest.fetch_bytes);
  report("fewest_evict_bytes", overlap.baseline.fewest.evict_bytes);
  report("fetch_bytes", overlap.moved.fetch_bytes);
  report("evict_bytes", overlap.moved.evict_bytes);
  report("predicted_fetch_bytes", prediction.fetch_bytes);
  report("predicted_evict_bytes", prediction.evict_bytes);
  int64_t updated_on_device = 0;
  for (const PlannedUpdate& update : overlap.plan.device_updates) {
    updated_on_device += overlap.plan.ranges[update.param()].num_bundles * overlap.plan.chunk_bytes;
  }
  report("updated_on_device_bytes", updated_on_device);
  report("rounds", overlap.rounds.rounds);
  report("planned_rounds", overlap.rounds.planned_rounds);
  for (int i = 0; i < kNumDivergences; ++i) {
    report("left_for_" + std::string(DivergenceName(static_cast<Divergence>(i))),
           overlap.rounds.divergences[i]);
  }
  for (int i = 0; i < kNumStallCauses; ++i) {
    const std::string cause(StallCauseName(static_cast<StallCause>(i)));
    report("stall_" + cause + "_s", overlap.stalls[i]);
    report("predicted_stall_" + cause + "_s", static_cast<double>(prediction.stall_ns[i]) * 1e-9);
  }
}

// `sum_of_passes`: compare with that, and not with the slower of the whole step.
void RunOverlap(benchmark::State& state, double transfer_by_compute, bool sum_of_passes) {
  for (auto _ : state) {
    const absl::StatusOr<Overlap> overlap = MeasureOverlap(kOverlapShape, transfer_by_compute);
    if (!overlap.ok()) return state.SkipWithError(overlap.status().ToString().c_str());
    const double bound = sum_of_passes ? overlap->sum_of_passes
                                       : std::max(overlap->baseline.step, overlap->transfer);
    state.SetIterationTime(overlap->step);
    state.counters["value"] = overlap->step / bound;
    state.counters["baseline"] = bound;
    state.counters["checked"] = overlap->checked ? 1 : 0;
    Report(state, *overlap);
  }
}

void overlap_half(benchmark::State& state) { RunOverlap(state, 0.5, /*sum_of_passes=*/false); }
void overlap_equal(benchmark::State& state) { RunOverlap(state, 1, /*sum_of_passes=*/true); }
void overlap_double(benchmark::State& state) { RunOverlap(state, 2, /*sum_of_passes=*/false); }
BENCHMARK(overlap_half)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(overlap_equal)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(overlap_double)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);

void simulator_time_error(benchmark::State& state) {
  for (auto _ : state) {
    double worst = -1;
    bool checked = true;
    for (const BenchShape& shape : kOtherShapes) {
      const absl::StatusOr<Overlap> overlap = MeasureOverlap(shape, /*transfer_by_compute=*/1);
      if (!overlap.ok()) return state.SkipWithError(overlap.status().ToString().c_str());
      checked &= overlap->checked;
      if (overlap->time_error() <= worst) continue;
      worst = overlap->time_error();
      state.SetIterationTime(overlap->step);
      state.counters["value"] = worst;
      state.counters["baseline"] = overlap->step;
      Report(state, *overlap);
    }
    state.counters["checked"] = checked ? 1 : 0;
  }
}
BENCHMARK(simulator_time_error)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace gemini::trainer
